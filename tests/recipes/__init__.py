"""The table of recipes: data sets and transforms that people train with, each tried with DataLoader and with ddlp.

`listing` has the list. Its modules define the recipes: `operators` and `presets` of torchvision and timm, `views` of
self-supervised training, `usercode`, `datasets`, and `others`, which do not classify images. `fakes` makes each data set's
files in their real layout. `trial` tries one recipe, `table` shows the outcomes, `command` is the command line.
"""
