// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// TestSpawned: the processes that torch.multiprocessing.spawn has started are ranks, though their environment says nothing.
func TestSpawned(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("/usr/bin/python3")
	if err != nil {
		t.Skip("Python is not installed")
	}
	dir := t.TempDir()
	if err = os.MkdirAll(filepath.Join(dir, "torch", "multiprocessing"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"torch/__init__.py": "", "torch/multiprocessing/__init__.py": "",
		"torch/multiprocessing/spawn.py": "def _wrap(fn, i, args, error_file):\n    fn(i, *args)\n",
		"main.py": `import ctypes, multiprocessing, signal
from torch.multiprocessing.spawn import _wrap

def train(rank):
    ctypes.CDLL(None).prctl(1, 9)  # ends with its parent
    print("ready", flush=True)
    signal.pause()

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    for i in (1, 0):
        context.Process(target=_wrap, args=(train, i, (), ""), daemon=True).start()
    signal.pause()
`,
	} {
		if err = os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pid := running(t, 2, python, filepath.Join(dir, "main.py"))
	j, ok := Spawned(t.Context(), pid)
	if !ok || j.World != 2 || len(j.Ranks) != 2 || j.Ranks[0].Rank+j.Ranks[1].Rank != 1 || j.Ranks[0].PID == j.Ranks[1].PID {
		t.Errorf("%v %+v", ok, j)
	}
	if _, ok := Spawned(t.Context(), os.Getpid()); ok {
		t.Error("a program without such processes has ranks")
	}
}

// TestProcesses: so are those of multiprocessing.Process, however it starts them: by the argument rank of their
// function, or of one that it calls, else in their order, which is said. The number of ranks that they were told
// counts, not that of those that run. Other processes are no ranks.
func TestProcesses(t *testing.T) {
	t.Parallel()
	script := program(t, `def train(rank, world_size, password):
    loaded = mmap.mmap(os.open(os.path.join(os.path.dirname(__file__), "libtorch.so"), os.O_RDONLY), 0, prot=mmap.PROT_READ)
    wait()

def inner(number, world_size, password):
    train(number, world_size, password)

def ordered(number, world_size, password):
    loaded = mmap.mmap(os.open(os.path.join(os.path.dirname(__file__), "libtorch.so"), os.O_RDONLY), 0, prot=mmap.PROT_READ)
    wait()

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    target = {"named": train, "inner": inner, "ordered": ordered}[sys.argv[2]]
    for i in (1, 0):
        multiprocessing.Process(target=target, args=(i, 3, "secret"), daemon=True).start()
    multiprocessing.Process(target=wait, daemon=True).start()
    if sys.argv[2] == "named":  # a helper, which is not a rank
        multiprocessing.Process(target=ordered, args=(0, 9, "secret"), daemon=True).start()
        multiprocessing.Process(target=inner, args=(0, 9, "secret"), daemon=True).start()
    else:
        print("ready", flush=True)
        print("ready", flush=True)
    signal.pause()
`)
	for _, method := range []string{"fork", "spawn", "forkserver"} {
		for names, first := range map[string]int{"named": 1, "inner": 1, "ordered": 0} {
			t.Run(method+" "+names, func(t *testing.T) {
				t.Parallel()
				pid := running(t, 5, "/usr/bin/python3", script, method, names)
				j, ok := Spawned(t.Context(), pid)
				if !ok || j.World != 3 || len(j.Ranks) != 2 || j.Ranks[0].Rank+j.Ranks[1].Rank != 1 {
					t.Fatalf("%v %+v", ok, j)
				}
				if j.Ranks[0].Rank != first || (len(j.Notes) > 0) != (names == "ordered") {
					t.Errorf("%+v %q", j.Ranks, j.Notes)
				}
				found := slices.ContainsFunc(Find(t.Context()), func(j Job) bool { return j.ID == strconv.Itoa(pid) })
				if want := names == "named"; found != want { // the others may be no ranks: they are in no call of torch.distributed
					t.Errorf("found without its number: %v", found)
				}
				same, ok := Spawned(t.Context(), j.Ranks[1].PID)
				if !ok || len(same.Ranks) != 2 {
					t.Errorf("by one of its ranks: %v %+v", ok, same)
				}
			})
		}
	}
}

// TestStartingRank: a process that has not come to its function is a rank, too: the world is not smaller while it imports.
func TestStartingRank(t *testing.T) {
	t.Parallel()
	script := program(t, `def train(rank):
    loaded = mmap.mmap(os.open(os.path.join(os.path.dirname(__file__), "libtorch.so"), os.O_RDONLY), 0, prot=mmap.PROT_READ)
    wait()

if __name__ != "__main__" and "LATE" in os.environ:
    wait()
if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    all = []
    for i in range(3):
        all.append(multiprocessing.Process(target=train, args=(i,), daemon=True))
        if i == 1:
            os.environ["LATE"] = "yes"
        all[-1].start()
        os.environ.pop("LATE", None)
    signal.pause()
`)
	pid := running(t, 3, "/usr/bin/python3", script, "spawn")
	j, ok := Spawned(t.Context(), pid)
	if !ok || j.World != 3 || len(j.Ranks) != 3 {
		t.Fatalf("%v %+v", ok, j)
	}
	for i, r := range j.Ranks {
		if r.Rank != i {
			t.Errorf("%+v", j.Ranks)
		}
	}
}

// program writes a program of multiprocessing, with what stands for PyTorch beside it. Its function wait says that it is ready.
func program(t *testing.T, rest string) (script string) {
	t.Helper()
	if _, err := os.Stat("/usr/bin/python3"); err != nil {
		t.Skip("Python is not installed")
	}
	dir := t.TempDir()
	script = filepath.Join(dir, "main.py")
	const begin = `import ctypes, mmap, multiprocessing, os, signal, sys

def wait():
    ctypes.CDLL(None).prctl(1, 9)  # ends with its parent
    print("ready", flush=True)
    signal.pause()

`
	for name, text := range map[string]string{"libtorch.so": "stands for PyTorch", "main.py": begin + rest} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(filepath.Join(dir, "libtorch.so"), 2*torchSize); err != nil { // as large as it, without taking room
		t.Fatal(err)
	}
	return script
}

// running starts a program that ends with the test, and returns when it has printed so many lines.
func running(t *testing.T, lines int, program string, args ...string) (pid int) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err = cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for in := bufio.NewScanner(out); lines > 0; lines-- {
		if !in.Scan() {
			t.Fatalf("%s: %d lines are missing", program, lines)
		}
	}
	return cmd.Process.Pid
}
