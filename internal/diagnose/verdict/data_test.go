// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/testing/datatest"
	"github.com/cohort-dist/cohort/internal/util/ranklist"
)

// order has the cases of [TestOrder].
const order = "order.txt"

// TestVerdicts: what was seen of a job, and what is said of it.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		if filepath.Base(file) == order {
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			datatest.Run(t, filepath.Base(file), verdictOf)
		})
	}
}

// TestOrder: of two rules that both find something the one decides that says what is certain, or says more. A case is named after both.
func TestOrder(t *testing.T) {
	t.Parallel()
	find := map[string]func(*analysis) (Verdict, bool){}
	place := map[string]int{} // of its stage
	for i, s := range stages {
		for _, r := range s.rules {
			find[r.name], place[r.name] = r.find, i
		}
	}
	used := map[string]bool{}
	datatest.Run(t, order, func(t *testing.T, input string) string {
		t.Helper()
		first, second, _ := strings.Cut(path.Base(t.Name()), "_before_")
		used[first], used[second] = true, true
		if place[first] > place[second] {
			t.Error("the stages are in another order")
		}
		v, ok := find[first](convene(readJob(t, input)))
		if _, also := find[second](convene(readJob(t, input))); !ok || !also {
			t.Errorf("one of them finds nothing: %v, %v", ok, also)
		}
		if got := Judge(readJob(t, input)).Sentence; got != v.Sentence {
			t.Errorf("%s\nwant %s", got, v.Sentence)
		}
		return verdictOf(t, input)
	})
	for name := range find {
		if !used[name] {
			t.Errorf("nothing keeps the place of %s", name)
		}
	}
}

// verdictOf judges the job of a case: the state of the job, those to blame, and the sentence.
func verdictOf(t *testing.T, input string) string {
	t.Helper()
	j := readJob(t, input)
	v := Judge(j)
	if len(j.Ranks) > 0 && len(v.Proof) == 0 {
		t.Error("no proof")
	}
	state := "not hung"
	switch {
	case v.Hung && v.Still:
		t.Error("hung, and perhaps not")
	case v.Hung:
		state = "hung"
	case v.Still && v.Unseen:
		state = "perhaps hung, GPUs unseen"
	case v.Still:
		state = "perhaps hung"
	}
	if len(v.Culprits) > 0 {
		state += "; culprits " + ranklist.Short(v.Culprits)
	}
	return state + "\n" + v.Sentence
}

// readJob reads a job in the form of [datatest.Read], with two kinds of lines of its own:
//
//	job World=2
//	rank 0
//	  in all_reduce train.py:27 src=0
//	rank 1 Idle=40s
//	  thread Kernel=pipe_read
//	    at load_batch train.py:12
//	    at <module> train.py:99
//
// "in" is a call of torch.distributed that the function step of the program makes in this line, and "at" any other
// call, the innermost first. Without other words a rank is a process that sleeps, and its first thread is the main one,
// which waits for another thread.
func readJob(t *testing.T, input string) Job {
	t.Helper()
	var j Job
	datatest.Read(t, input, &j, map[string]datatest.Line{"at": readFrame, "in": readCollective})
	for i := range j.Ranks {
		r := &j.Ranks[i]
		if r.PID == 0 {
			r.PID = 100 + r.Rank
		}
		if r.State == "" {
			r.State = "S"
		}
		for k := range r.Threads {
			complete(&r.Threads[k], k == 0, 100+r.Rank)
		}
		if len(r.Threads) > 0 {
			r.Main = &r.Threads[0]
		}
	}
	return j
}

// complete gives a thread what its line leaves out.
func complete(t *stacks.Thread, main bool, id int) {
	if t.State == "" {
		t.State = "S"
	}
	if main && t.ID == 0 {
		t.ID = id
	}
	switch {
	case t.Kernel == "-":
		t.Kernel = ""
	case main && t.Kernel == "":
		t.Kernel = "futex_do_wait"
	}
}

// folders are short forms of the folders that files of stacks are in; a file without a folder is one of the program.
var folders = [][2]string{
	{"torch/", "/usr/lib/python3/dist-packages/torch/"},
	{"python/", "/usr/lib/python3.14/"},
	{"cohort/", module + "/"},
	{"go/", "/usr/local/go/src/"},
}

// readFrame reads "at FUNCTION FILE:LINE ARGUMENTS", a call of the thread above, or of the main thread of the rank above.
func readFrame(parent any, rest string) error {
	f, err := frameOf(rest)
	if err != nil {
		return err
	}
	return add(parent, f)
}

// readCollective reads "in FUNCTION FILE:LINE ARGUMENTS": the function step of the program is in this call of torch.distributed.
func readCollective(parent any, rest string) error {
	f, err := frameOf(rest)
	if err != nil {
		return err
	}
	return add(parent, stacks.Frame{Func: f.Func, File: c10d, Line: 1, Args: f.Args},
		stacks.Frame{Func: "_exception_logger.<locals>.wrapper", File: logger, Line: 83},
		stacks.Frame{Func: "step", File: f.File, Line: f.Line}, stacks.Frame{Func: "<module>", File: f.File, Line: 99})
}

func frameOf(text string) (f stacks.Frame, err error) {
	function, place, _ := strings.Cut(text, " ")
	place, f.Args, _ = strings.Cut(place, " ")
	if colon := strings.LastIndexByte(place, ':'); colon >= 0 {
		if f.Line, err = strconv.Atoi(place[colon+1:]); err != nil {
			return f, err
		}
		place = place[:colon]
	}
	f.Func, f.File = function, inFull(place)
	if strings.HasPrefix(function, "cohort/") {
		f.Func = inFull(function)
	}
	if !strings.Contains(place, "/") {
		f.File = "/srv/job/" + place
	}
	return f, nil
}

// add adds calls to a thread, to the main one of a rank, or to a child.
func add(parent any, frames ...stacks.Frame) error {
	switch p := parent.(type) {
	case *Rank:
		if len(p.Threads) == 0 {
			p.Threads = make([]stacks.Thread, 1)
		}
		p.Threads[0].Frames = append(p.Threads[0].Frames, frames...)
	case *stacks.Thread:
		p.Frames = append(p.Frames, frames...)
	case *Child:
		p.Frames = append(p.Frames, frames...)
	default:
		return fmt.Errorf("a %T has no calls", parent)
	}
	return nil
}

// inFull returns a name with its short form of a folder written out.
func inFull(name string) string {
	if module, frozen := strings.CutPrefix(name, "frozen/"); frozen {
		return "<frozen " + module + ">"
	}
	i := slices.IndexFunc(folders, func(f [2]string) bool { return strings.HasPrefix(name, f[0]) })
	if i < 0 {
		return name
	}
	return folders[i][1] + name[len(folders[i][0]):]
}
