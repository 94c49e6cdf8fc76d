// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort/internal/launch/agent"
)

// How says how the program of a job is run.
type How int

// The ways to run a program.
const (
	// Auto runs a .py file, and a file that is not executable, with Python and executes anything else.
	Auto How = iota
	// Script runs a file with Python.
	Script
	// Module runs a Python module: python -m.
	Module
	// Executable executes the program.
	Executable
	// RunPath runs a file with Python's runpy.run_path: --run-path.
	RunPath
)

// String says how a program is run.
func (h How) String() string {
	return named(h, "how", map[How]string{
		Auto: "auto", Script: "script", Module: "module", Executable: "executable", RunPath: "run-path",
	})
}

// Hosting says whether a launcher hosts the rendezvous of a job on several nodes. It corresponds to torchrun's
// --rdzv-conf is_host.
type Hosting int

// Whether to host the rendezvous.
const (
	// HostAuto hosts it if the address of the endpoint is one of this machine.
	HostAuto Hosting = iota
	HostAlways
	HostNever
)

// String says who hosts.
func (h Hosting) String() string {
	return named(h, "hosting", map[Hosting]string{HostAuto: "auto", HostAlways: "always", HostNever: "never"})
}

// Std is a set of streams. It corresponds to torch.distributed.elastic.multiprocessing.Std, with the same numbers.
type Std int

// The streams of a worker.
const (
	StdNone Std = 0
	StdOut  Std = 1
	StdErr  Std = 2
	StdAll  Std = 3
)

// String names the streams.
func (s Std) String() string {
	return named(s, "streams", map[Std]string{StdNone: "none", StdOut: "stdout", StdErr: "stderr", StdAll: "stdout and stderr"})
}

// named returns the name of a number that stands for something.
func named[T ~int](n T, kind string, names map[T]string) string {
	return cmp.Or(names[n], kind+" "+strconv.Itoa(int(n)))
}

// StdMap chooses streams for each local rank: All applies to those that are not in Ranks.
type StdMap struct {
	All   Std
	Ranks map[int]Std
}

// Of returns the choice for a local rank.
func (m StdMap) Of(local int) Std {
	if s, found := m.Ranks[local]; found {
		return s
	}
	return m.All
}

// streams are the choices for the first local ranks.
func (m StdMap) streams(workers int) []agent.Streams {
	all := make([]agent.Streams, workers)
	for local := range all {
		all[local] = agent.Streams(m.Of(local))
	}
	return all
}

// ParseStd reads a value of torchrun's --redirects and --tee: "3", or "0:1,2:3" for single local ranks. Unlike torchrun
// it takes ranks above 9.
func ParseStd(text string) (StdMap, error) {
	if text == "" {
		return StdMap{}, nil
	}
	if !strings.Contains(text, ":") {
		v, err := parseStreams(text)
		return StdMap{All: v}, err
	}
	m := StdMap{Ranks: map[int]Std{}}
	for part := range strings.SplitSeq(text, ",") {
		rank, value, _ := strings.Cut(part, ":")
		r, err := strconv.Atoi(rank)
		if err != nil || r < 0 {
			return m, refuse("%q is not RANK:VALUE", part)
		}
		v, err := parseStreams(value)
		if err != nil {
			return m, err
		}
		m.Ranks[r] = v
	}
	return m, nil
}

// parseStreams reads the number of a set of streams.
func parseStreams(text string) (Std, error) {
	v, err := strconv.Atoi(text)
	if err != nil || v < 0 || v > 3 {
		return 0, refuse("%q is none of 0 (none), 1 (stdout), 2 (stderr), 3 (both)", text)
	}
	return Std(v), nil
}
