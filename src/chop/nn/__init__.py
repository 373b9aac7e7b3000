"""Operations computed in number formats."""
