"""The version of this distribution; read by the build, the CLI and exported files."""

__version__ = "0.1.0"
