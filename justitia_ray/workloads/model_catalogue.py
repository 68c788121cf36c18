"""What PE plans with: the tasks there are, the models for each, and plans to learn from."""

import json

LANGUAGE_TASKS = ("conversational", "summarization", "text-generation", "translation")
"""Carried out by the LLM itself."""

MODELS: dict[str, tuple[str, ...]] = {
    "depth-estimation": (
        "depth-large: relative depth of photographs, slow, the most exact indoors",
        "depth-hybrid: relative depth of photographs, four times as fast, blurs thin objects",
        "depth-metric: depth in metres, trained on street scenes",
    ),
    "object-detection": (
        "detector-resnet: boxes and names of 80 everyday things, exact on large ones",
        "detector-tiny: boxes and names of 80 everyday things, fast, misses small ones",
        "detector-open: boxes of whatever a text names, slow",
    ),
    "image-classification": ("classifier-base: one of 1,000 names for a whole image",),
    "image-segmentation": ("segmenter-panoptic: outlines of things and of background",),
    "image-to-image": ("restorer: sharpens, colours and enlarges images",),
    "image-to-text": ("captioner: one sentence on what an image shows",),
    "text-to-image": ("painter: an image of 512 by 512 from a description",),
    "text-to-video": ("animator: two seconds of video from a description",),
    "visual-question-answering": ("image-reader: a short answer to a question about an image",),
    "document-question-answering": ("form-reader: a short answer to a question about a scan",),
    "depth-text-to-image": ("painter-depth: an image from a description and a depth map",),
    "automatic-speech-recognition": ("transcriber: the words of a recording",),
    "text-to-speech": ("speaker: a recording of a text, one voice",),
}
"""By task, each as `NAME: what it is good for`."""

_TASK_LIST = "Tasks:\n" + "\n".join(
    [
        *(
            f"{task}: {'; '.join(model.partition(': ')[2] for model in models)}"
            for task, models in MODELS.items()
        ),
        "conversational: an answer to a remark or question that needs no other task",
        "summarization: a text in fewer words",
        "text-generation: a new text from instructions, such as a letter, a story or a list",
        "translation: a text in another language; name the language in args",
    ]
)

_RULES = """\
Rules. Use as few subtasks as the request needs, and none that it does not ask for. A subtask that
works on what another one makes names it in dep and writes <result-ID> in args where that result
belongs; ids count from 0 in the order of the list, and dep names earlier ids only. Subtasks that do
not need each other must not name each other, so that they can run at the same time. Copy file names
and quoted texts from the request exactly as they are. If a request asks something about an image,
that is visual-question-answering; if it wants to know what an image shows, that is image-to-text;
if it wants to know where things are or how many, that is object-detection. Answer [] if none of the
tasks can help."""


def _shown(request: str, *subtasks: tuple[str, list[int], dict[str, str]]) -> str:
    """Return a request with its plan, as the model is to write it."""
    plan = [
        {"task": task, "id": number, "dep": needs, "args": arguments}
        for number, (task, needs, arguments) in enumerate(subtasks)
    ]
    return f"Request: {request}\nSubtasks: {json.dumps(plan)}"


PLAN_EXAMPLES = (
    f"{_TASK_LIST}\n\n{_RULES}",
    _shown(
        "How many bicycles are in yard.jpg, and which of them is nearest? Tell me in Spanish.",
        ("object-detection", [-1], {"image": "yard.jpg"}),
        ("depth-estimation", [-1], {"image": "yard.jpg"}),
        (
            "translation",
            [0, 1],
            {"text": "bicycles: <result-0>, depths: <result-1>", "language": "Spanish"},
        ),
    ),
    _shown(
        "Draw a lighthouse in a storm, say in one sentence what the picture shows, and read that"
        " sentence out to me.",
        ("text-to-image", [-1], {"text": "a lighthouse in a storm"}),
        ("image-to-text", [0], {"image": "<result-0>"}),
        ("text-to-speech", [1], {"text": "<result-1>"}),
    ),
    _shown(
        "Here is the recording meeting.wav. I need its main points and a friendly letter to the"
        " team about them.",
        ("automatic-speech-recognition", [-1], {"audio": "meeting.wav"}),
        ("summarization", [0], {"text": "<result-0>"}),
        ("text-generation", [1], {"text": "a friendly letter to the team about <result-1>"}),
    ),
    _shown(
        "Sharpen old.png. Is the woman on the left wearing a hat? And make a video of a hat that"
        " flies away.",
        ("image-to-image", [-1], {"image": "old.png"}),
        (
            "visual-question-answering",
            [0],
            {"image": "<result-0>", "question": "Is the woman on the left wearing a hat?"},
        ),
        ("text-to-video", [-1], {"text": "a hat that flies away in the wind"}),
    ),
    _shown(
        "Explain in plain words what this says, then write a short poem about it: 'Photosynthesis"
        " converts light energy into chemical energy that is later released to fuel the organism.'",
        (
            "summarization",
            [-1],
            {
                "text": "Photosynthesis converts light energy into chemical energy that is later"
                " released to fuel the organism."
            },
        ),
        ("text-generation", [0], {"text": "a short poem about <result-0>"}),
    ),
)
"""The tasks and rules, then requests with their plans: 4,943 characters in the recorded prompts."""
