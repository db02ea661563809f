"""From settings to a running server: picks the engine, builds the model around it, says what it serves, serves.

The only layer that knows all the others. One module for each kind of engine, imported when it is chosen.
"""

from .models import build_models
from .server import Server, greeting, run, serving_options, uvicorn_config

__all__ = ["Server", "build_models", "greeting", "run", "serving_options", "uvicorn_config"]
