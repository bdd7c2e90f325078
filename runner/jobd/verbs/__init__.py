"""The requests that jobd answers, and the bodies of its stages."""
