"""What notebooks call: the passes and actions of this package on any module and any loader."""
