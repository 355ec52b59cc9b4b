"""Memory of trainings, estimated before they run from models without weights.

`peak` runs a step on the `meta` device and counts its tensors; `blueprint` loads an editor there. From both,
`stages` estimates each stage of an editor's recipe, `scorer` and `vlm` the training of a scorer and of a
vision-language model. `savers` asks `stages` for the cheapest settings that fit a GPU.
"""
