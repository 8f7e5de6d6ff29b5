"""A model that is loaded once: when a worker process starts, and not in each task."""

from collections.abc import Iterator

from taskmesh import Mesh, Middleware, task


class Model:
    """Stands for what takes long to load."""

    def __init__(self) -> None:
        self.weights = [1, 2, 3]
        self.answers = 0

    def predict(self, x: int) -> int:
        self.answers += 1
        return x * sum(self.weights)


class LoadModel(Middleware[Model]):
    """Code that runs in each worker process."""

    def process_start(self) -> Iterator[Model]:
        model = Model()  # before the first task of the process
        yield model  # model() in a task gives this object
        del model  # at the end of the process: close files and connections here


model = LoadModel()


@task
def predict(x: int) -> int:
    return model().predict(x)


@task
def answers() -> int:
    return model().answers


if __name__ == "__main__":
    # For workers elsewhere: `taskmesh worker --use package.module:model`
    with Mesh(workers=1, middleware=[model]) as mesh:
        print(list(mesh.map(predict, range(4))))  # [0, 6, 12, 18]
        print(answers.submit().result(), "answers of one model")  # 4 answers of one model
