"""First tasks: call a function in another process, and take its result or its error."""

from taskmesh import Mesh, gather, task


@task(retries=2, timeout=30)
def primes_below(n: int) -> int:
    return sum(all(k % d for d in range(2, int(k**0.5) + 1)) for k in range(2, n))


@task
def parse(text: str) -> int:
    return int(text)


if __name__ == "__main__":
    print(primes_below(100))  # 25
    with Mesh(workers=2) as mesh:  # Mesh() has a worker process for each CPU
        future = primes_below.submit(1000)  # runs in a worker; the program goes on
        print(future.result(timeout=30))  # 168
        print(gather([primes_below.submit(n) for n in (10, 100, 1000)]))  # [4, 25, 168]
        print(mesh.submit(pow, 2, 10).result())  # 1024
        try:
            parse.submit("four").result()
        except ValueError as error:  # the error of the worker, with its traceback
            print(error)  # invalid literal for int() with base 10: 'four'
