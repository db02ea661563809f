"""The engine `encoder`: models that embed texts or score pairs of texts."""
