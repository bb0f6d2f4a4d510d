"""The explorer as a Hugging Face Space: one file. Put `codingrate[explore] @ git+URL` of
the repository into requirements.txt beside it.

Without arguments it opens the models that ship with the package; name others in EXPLORE, separated by spaces.
"""

import os

from codingrate.explorer import launch

if __name__ == "__main__":
    launch(
        os.environ.get("EXPLORE", "").split(),
        host="0.0.0.0",
        port=int(os.environ.get("PORT", "7860")),
        names=os.environ.get("SPACE_HOST", "").split(","),  # the name by which a Space is asked for
    )
