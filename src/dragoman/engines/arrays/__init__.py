"""What the models in numpy have in common: products that treat rows alike, files of weights, batches of inputs."""
