"""The engine `mlx`: models of mlx-lm."""
