"""Write the stored copy of the schema."""

from chop.actions.schema import schema_text
from chop.config.schema import FILE
from chop.files import write_text

if __name__ == "__main__":
    write_text(FILE, schema_text())
