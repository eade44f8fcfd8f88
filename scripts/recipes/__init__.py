"""The table of recipes: what people train with, each tried with DataLoader and with ddlp.

`listing` is the list, and the modules that it names say what each recipe is: `operators` and `presets` of torchvision and timm,
`views` of self-supervised training, `usercode`, `datasets`, and `others` than classification of images. `fakes` makes each data
set's files in their real layout. `trial` tries one recipe, `table` shows what was found, `command` is the command line.
"""
