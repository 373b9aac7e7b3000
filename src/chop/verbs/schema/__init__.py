"""Schema: the JSON Schema of configuration files, for editors; `document` makes all of it."""

from dataclasses import dataclass, field

from chop.config.run import Debug, Imports, Quiet
from chop.config.verb import Verb, add_verb


@dataclass(frozen=True, kw_only=True)
class SchemaRequest:
    """Print the JSON Schema of configuration files, for editors."""

    imports: Imports = field(default_factory=list)
    quiet: Quiet = False
    to_debug: Debug = False


def schema_for(request: SchemaRequest) -> str:
    """Return the schema of configuration files, with a user's own passes where files are named."""
    if not request.imports:
        from chop.config.schema import read_schema

        return read_schema()
    from chop.loading.user_code import import_user_code
    from chop.verbs.schema.document import schema_text

    import_user_code(request.imports)
    return schema_text()


add_verb(
    Verb(
        "schema",
        SchemaRequest,
        place=14,
        quiet="the schema, as always",
        function=schema_for,
        show=lambda text, request: str(text),
    )
)
