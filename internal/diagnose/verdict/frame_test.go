// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/diagnose/torchdump"
)

const (
	c10d       = "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py"
	functional = "/usr/lib/python3/dist-packages/torch/distributed/_functional_collectives.py"
	logger     = "/usr/lib/python3/dist-packages/torch/distributed/c10d_logger.py"
	rpcAPI     = "/usr/lib/python3/dist-packages/torch/distributed/rpc/api.py"
	script     = "/srv/job/train.py"
)

// in returns a rank whose main thread is in a call of torch.distributed that the script makes in a line.
func in(rank int, op, args string, line int) Rank {
	return with(rank, stacks.Frame{Func: op, File: c10d, Line: 1, Args: args}, stacks.Frame{Func: "_exception_logger.<locals>.wrapper", File: logger, Line: 83},
		stacks.Frame{Func: "step", File: script, Line: line}, stacks.Frame{Func: "<module>", File: script, Line: 99})
}

// at returns a rank that is in a function of the script.
func at(rank int, function string, line int) Rank {
	return with(rank, stacks.Frame{Func: function, File: script, Line: line}, stacks.Frame{Func: "<module>", File: script, Line: 99})
}

func with(rank int, frames ...stacks.Frame) Rank {
	t := stacks.Thread{ID: 100 + rank, State: "S", Kernel: "futex_do_wait", Frames: frames}
	return Rank{Rank: rank, PID: 100 + rank, State: "S", Threads: []stacks.Thread{t}, Main: &t}
}

// inOther adds a second thread that reads from a pipe.
func inOther(r Rank, frames ...stacks.Frame) Rank {
	r.Threads = append(r.Threads, stacks.Thread{ID: 777, State: "S", Kernel: "anon_pipe_read", Frames: frames})
	return r
}

// told gives a rank what it was started with.
func told(r Rank, world int, store string) Rank {
	r.World, r.Store = world, store
	return r
}

func edit(r Rank, change func(*Rank)) Rank {
	change(&r)
	return r
}

func dumps(t *testing.T, kind string, ranks ...Rank) []Rank {
	t.Helper()
	for i := range ranks {
		data, err := os.ReadFile(filepath.Join("..", "torchdump", "testdata", kind, "rank"+string(rune('0'+ranks[i].Rank))+".json"))
		if err != nil {
			t.Fatal(err)
		}
		if ranks[i].Dump, err = torchdump.Parse(data); err != nil {
			t.Fatal(err)
		}
	}
	return ranks
}

// typed returns ranks that are in the same collective with elements of these types.
func typed(t *testing.T, types ...string) []Rank {
	t.Helper()
	var all []Rank
	for rank, name := range types {
		d, err := torchdump.Parse([]byte(`{"version":"2.10","pg_config":{"0":{"name":"0","desc":"default_pg","ranks":"[0, 1, 2]"}},"entries":[{"record_id":3,"pg_id":0,
			"process_group":["0","default_pg"],"collective_seq_id":4,"profiling_name":"nccl:all_reduce","input_sizes":[[8]],"input_dtypes":["` + name + `"],"state":"scheduled"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, Rank{Rank: rank, Dump: d})
	}
	return all
}

// sentence is what is said of a job.
type sentence struct {
	job  Job
	want string
}

func wantSentences(t *testing.T, all map[string]sentence) {
	t.Helper()
	for name, c := range all {
		v := Judge(c.job)
		if v.Sentence != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, v.Sentence, c.want)
		}
		if len(c.job.Ranks) > 0 && len(v.Proof) == 0 {
			t.Errorf("%s: no proof", name)
		}
		if hung := !strings.HasPrefix(c.want, "No") && !strings.HasPrefix(c.want, "Perhaps not hung") && !strings.Contains(c.want, "at work, but") || strings.HasPrefix(c.want, "No rank waits"); v.Hung != hung {
			t.Errorf("%s: hung is %v", name, v.Hung)
		}
	}
}
