// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
)

// Spawned returns the job of a program that starts its ranks with torch.multiprocessing.spawn or multiprocessing.Process: they set
// RANK and MASTER_ADDR for themselves, which cannot be seen from outside, so the process of the program, or of a rank, must be known. ok
// is false where there are none.
func Spawned(ctx context.Context, pid int) (j Job, ok bool) {
	var reader stacks.Reader
	for above, n := pid, 0; n < 2; n++ { // a fork server may be between them
		if above, _ = stat("/proc", above); above <= 1 {
			break
		}
		if j, _ = spawnedBy(ctx, &reader, above); slices.ContainsFunc(j.Ranks, func(r Rank) bool { return r.PID == pid }) {
			return j, true
		}
	}
	j, _ = spawnedBy(ctx, &reader, pid)
	return j, len(j.Ranks) > 0
}

// findSpawned returns the jobs of programs that start their ranks themselves, beside those that are known: a process that uses PyTorch
// below one that has no rank. Processes of which none has the number of a rank or is in a call of torch.distributed are no job.
func findSpawned(ctx context.Context, proc string, known map[int]process) []Job {
	var reader stacks.Reader
	var programs []int
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if _, ranked := known[pid]; err != nil || ranked || !mayHaveTorch(proc, pid) || !hasTorch(pid) {
			continue
		}
		above, _ := stat(proc, pid)
		if p, err := reader.Read(ctx, above); err == nil && p.Main() != nil && forkServer(p.Main().Frames) {
			above, _ = stat(proc, above)
		}
		if _, ranked := known[above]; !ranked && above > 1 {
			programs = append(programs, above)
		}
	}
	var all []Job
	slices.Sort(programs)
	for _, pid := range slices.Compact(programs) {
		if j, sure := spawnedBy(ctx, &reader, pid); sure {
			all = append(all, j)
		}
	}
	return all
}

// spawnedBy returns the job of a program. Its processes are surely ranks if they have numbers or are in calls of torch.distributed.
func spawnedBy(ctx context.Context, reader *stacks.Reader, pid int) (j Job, sure bool) {
	j = Job{ID: strconv.Itoa(pid), Local: true}
	var all []spawned
	children := childrenOf(pid)
	for i := 0; i < len(children); i++ {
		child := children[i]
		p, err := reader.Read(ctx, child)
		if err != nil || p.Main() == nil {
			switch _, state := stat("/proc", child); {
			case state == "Z":
				all = append(all, spawned{rank: -1}) // it may have been one: those after it keep their numbers
			case errors.Is(err, stacks.ErrNoInterpreter) && spawnMain(child):
				all = append(all, spawned{pid: child, rank: -1, starts: true})
			}
			continue
		}
		frames := p.Main().Frames
		if forkServer(frames) {
			children = append(children, childrenOf(child)...)
			continue
		}
		s, found := spawnedAs(frames)
		switch {
		case !found && imports(frames):
			s = spawned{rank: -1, starts: true}
		case !found || s.by == plainProcess && !hasTorch(child):
			continue
		}
		s.pid = child
		all = append(all, s)
		sure = sure || s.rank >= 0 && !s.inner || slices.ContainsFunc(p.Threads, distributed)
	}
	j.number(all)
	if p, err := reader.Read(ctx, pid); err == nil {
		j.World = max(j.World, nprocs(p.Main()))
	}
	return j, sure
}

// number gives the processes of a program their ranks: those that they were given, else their places in the order in which they were
// started.
func (j *Job) number(all []spawned) {
	all = trusted(all)
	numbered := slices.ContainsFunc(all, func(s spawned) bool { return s.rank >= 0 })
	ordered := !slices.ContainsFunc(all, func(s spawned) bool { return s.rank >= 0 && s.rank != s.place })
	world := 0 // where the program tells it
	for _, s := range all {
		switch {
		case s.pid == 0:
			continue // it has ended
		case numbered && s.rank < 0 && (!s.starts || !ordered): // a process without a number beside those with one helps them
			continue
		case s.rank < 0:
			s.rank = s.place
		}
		r := Describe(s.rank, s.pid)
		r.Command = s.by
		j.Ranks = append(j.Ranks, r)
		j.World, world = max(j.World, s.rank+1), max(world, s.world)
	}
	if world > 0 {
		j.World = world
	}
	if !numbered && len(j.Ranks) > 0 {
		j.Notes = []string{
			"the program does not tell the numbers of its ranks: they are numbered in the order in which they were started, without " +
				"those that have exited and were waited for",
		}
	}
}

// trusted tells the processes their places in the order, and takes away numbers that may be of something else: those of functions
// further in, where others were given theirs or two have the same.
func trusted(all []spawned) []spawned {
	all = slices.Clone(all)
	seen, keep := map[int]bool{}, true
	for i, s := range all {
		all[i].place = i
		keep = keep && (s.rank < 0 || s.inner && !seen[s.rank])
		seen[s.rank] = true
	}
	for i := range all {
		if all[i].inner && !keep {
			all[i].rank = -1
		}
	}
	return all
}

// nprocs returns how many processes a program has started with torch.multiprocessing.spawn, which waits for them now; 0: not known.
func nprocs(t *stacks.Thread) int {
	if t == nil {
		return 0
	}
	joins, n := false, 0
	for _, f := range t.Frames {
		if strings.HasSuffix(f.File, stacks.SpawnFile) {
			joins = joins || strings.HasSuffix(f.Func, ".join")
			n = max(n, number(f.Args, "nprocs"))
		}
	}
	if !joins { // it may still start some
		return 0
	}
	return n
}

// imports reports whether a process that multiprocessing has started reads the program anew, before it calls its function.
func imports(frames []stacks.Frame) bool {
	return !slices.ContainsFunc(frames, stacks.StartsTarget) && slices.ContainsFunc(frames, func(f stacks.Frame) bool {
		return strings.HasSuffix(f.File, "/multiprocessing/spawn.py") && (f.Func == "spawn_main" || f.Func == "_main")
	})
}

// spawnMain reports whether a process is one that multiprocessing starts as a new Python.
func spawnMain(pid int) bool {
	cmdline, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline")) // a file of the kernel
	return err == nil && bytes.Contains(cmdline, []byte("spawn_main(")) && bytes.Contains(cmdline, []byte("--multiprocessing-fork"))
}

func distributed(t stacks.Thread) bool {
	return slices.ContainsFunc(t.Frames, func(f stacks.Frame) bool { return strings.Contains(f.File, "/torch/distributed/") })
}

// forkServer reports whether a process is the one that multiprocessing has start all others. Those have calls of it, too.
func forkServer(frames []stacks.Frame) bool {
	return len(frames) > 0 && !slices.ContainsFunc(frames, stacks.StartsTarget) && !imports(frames) &&
		slices.ContainsFunc(frames, func(f stacks.Frame) bool {
			return strings.HasSuffix(f.File, "/multiprocessing/forkserver.py")
		})
}

const (
	torchSpawn   = "torch.multiprocessing.spawn"
	plainProcess = "multiprocessing.Process"
)

// spawned is what the stack of a process that its program has started tells of it.
type spawned struct {
	pid    int // 0: it has ended
	by     string
	rank   int  // -1: not known
	world  int  // 0: not known
	place  int  // in the order in which they were started
	inner  bool // its number is that of a function further in
	starts bool // it has not come to its function
}

// spawnedAs looks for what has started a process. Processes that run a library's code are no ranks: they serve a pool or a data
// loader.
func spawnedAs(frames []stacks.Frame) (s spawned, found bool) {
	for i, f := range frames {
		switch {
		case f.Func == "_wrap" && strings.HasSuffix(f.File, stacks.SpawnFile):
			n := number(f.Args, "i")
			return spawned{by: torchSpawn, rank: n}, n >= 0
		case stacks.StartsTarget(f):
			if i == 0 || stacks.Library(frames[i-1].File) {
				return spawned{}, false
			}
			args := frames[i-1].Args
			n := number(args, "rank")
			if n < 0 {
				n = number(args, "local_rank")
			}
			s = spawned{by: plainProcess, rank: n, world: max(0, number(args, "world_size"))}
			for k := i - 2; k >= 0 && s.rank < 0; k-- {
				s.rank, s.inner = number(frames[k].Args, "rank"), true
			}
			return s, true
		}
	}
	return spawned{}, false
}

// number returns the argument of a call with a name, -1 if it has none that is a number.
func number(args, name string) int {
	for arg := range strings.FieldsSeq(args) {
		if value, found := strings.CutPrefix(arg, name+"="); found {
			if n, err := strconv.Atoi(value); err == nil && n >= 0 {
				return n
			}
		}
	}
	return -1
}
