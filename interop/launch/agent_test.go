// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// agentEvent is an event of torchrun's log, its details unpacked.
type agentEvent struct {
	Name     string         `json:"name"`
	Source   string         `json:"source"`
	Metadata map[string]any `json:"metadata"`
	details  map[string]any
}

// eventsIn reads the events that a launcher has printed among other lines.
func eventsIn(t *testing.T, text string) []agentEvent {
	t.Helper()
	var all []agentEvent
	for line := range strings.Lines(text) {
		at := strings.Index(line, `{"name": "torchelastic`)
		if at < 0 {
			at = strings.Index(line, `{"name":"torchelastic`)
		}
		if at < 0 {
			continue
		}
		var e agentEvent
		if err := json.Unmarshal([]byte(line[at:]), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		inner, _ := e.Metadata["metadata"].(string)
		if err := json.Unmarshal([]byte(inner), &e.details); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		all = append(all, e)
	}
	return all
}

// otherEachTime are fields that differ from run to run. The program of the workers is Python, but chroot where that
// lives in a root of its own.
var otherEachTime = map[string]bool{
	"worker_id": true, "hostname": true, "total_run_time": true, "duration_ms": true,
	"metadata": true, "raw_error": true, "worker_pid": true, "entry_point": true,
}

// compareEvents compares what torchrun has recorded with what we have: every field of it, in this order.
func compareEvents(t *testing.T, ours, theirs []agentEvent) {
	t.Helper()
	if len(ours) != len(theirs) || len(theirs) < 4 {
		t.Fatalf("%d events and %d of torchrun:\n%v\n%v", len(ours), len(theirs), ours, theirs)
	}
	for i, e := range theirs {
		for name, want := range e.Metadata {
			got, found := ours[i].Metadata[name]
			if !found || !otherEachTime[name] && fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("event %d, %s: %v, torchrun has %v", i, name, got, want)
			}
		}
		for name, want := range e.details {
			got, found := ours[i].details[name]
			if !found || !otherEachTime[name] && fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("event %d (%s), %s: %v, torchrun has %v", i, e.Name, name, got, want)
			}
		}
		if ours[i].Source != e.Source {
			t.Errorf("event %d (%s): source %s, torchrun has %s", i, e.Name, ours[i].Source, e.Source)
		}
	}
}

// TestSameEvents: --event-log-handler console records the same events under both launchers, of a job that succeeds and of one that is
// restarted and fails.
func TestSameEvents(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		if !torch.About(t).Since(2, 9) {
			torch.NotApplicable(t, "has no handlers of events to choose from")
		}
		dir := place(t, torch)
		for _, code := range []string{"0", "3"} {
			j := cohortRun(t, torch, dir, []string{
				"--nproc-per-node", "2", "--rdzv-id", "job", "--rdzv-backend", "c10d",
				"--max-restarts", "1", "--event-log-handler", "console",
			}, "-u", dir+"/end.py", code)
			cmd, path := withTorchrun(t, torch, dir, "--max_restarts", "1", "--event_log_handler", "console", dir+"/end.py", code)
			k := begin(t, dir, cmd, path)
			if ours, theirs := j.end(), k.end(); ours != theirs {
				t.Errorf("exit codes %d and %d of torchrun\n%s\n%s", ours, theirs, j.err, k.err)
			}
			compareEvents(t, eventsIn(t, j.err.String()), eventsIn(t, k.err.String()))
		}
	})
}

// blamed finds in torchrun's report how a rank has ended.
var blamed = regexp.MustCompile(`rank +: (\d+) \(local_rank: \d+\)\s+exitcode +: (-?\d+)`)

// TestSameFailures: a script that raises, crashes or is killed, and one that hangs until the launcher is told to end, give the same exit
// code and the same end of the rank that is at fault under both launchers.
func TestSameFailures(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		for _, kind := range []string{"disk-text", "killed", "segfault"} {
			t.Run(kind, func(t *testing.T) {
				dir := place(t, torch)
				j := cohortRun(t, torch, dir, []string{"--nproc-per-node", "2"}, "-u", dir+"/fail.py", kind)
				if code := j.end(); code != 1 {
					t.Errorf("exit code %d\n%s", code, j.err)
				}
				report := j.report()
				last := report.Attempts[len(report.Attempts)-1]
				ours, theirs := strconv.Itoa(last.Of(1).Code), ""
				for try := 0; try < tries && theirs != ours; try++ {
					theirs = torchrunsEnd(t, torch, dir, dir+"/fail.py", kind)
				}
				if last.First != 1 || ours != theirs {
					t.Errorf("rank %d is at fault, and rank 1 ended with %s; under torchrun it ended with %s", last.First, ours, theirs)
				}
			})
		}
		t.Run("hang", func(t *testing.T) {
			dir := place(t, torch)
			j := cohortRun(t, torch, dir, []string{"--nproc-per-node", "2"}, "-u", dir+"/hang.py", "mismatch")
			j.wait(j.out, "at mismatch", 2)
			_ = j.Process.Signal(syscall.SIGTERM)
			if code := j.end(); code != 1 {
				t.Errorf("exit code %d\n%s", code, j.err)
			}
			for range tries {
				cmd, path := withTorchrun(t, torch, dir, dir+"/hang.py", "mismatch")
				k := begin(t, dir, cmd, path)
				k.wait(k.out, "at mismatch", 2)
				_ = k.Process.Signal(syscall.SIGTERM)
				code, ended := k.endWithin(time.Minute)
				if !ended { // torchrun of 1.13 sometimes does not end
					killAll(t, dir+"/hang.py")
					continue
				}
				if code != 1 {
					t.Errorf("exit code %d of torchrun\n%s", code, k.err)
				}
				return
			}
			t.Errorf("torchrun did not end in any of %d tries", tries)
		})
	})
}

// killAll kills the processes that run a script.
func killAll(t *testing.T, script string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		text, err := os.ReadFile(name)
		pid, bad := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err == nil && bad == nil && slices.Contains(strings.Split(string(text), "\x00"), script) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// tries is how often torchrun gets a chance to do what it does most of the time.
const tries = 4

// torchrunsEnd runs a script that fails under torchrun, and returns with what rank 1 ended. When torchrun looks at its workers, both may
// have failed: then it names the one that it looks at first, and may have ended the other one itself.
func torchrunsEnd(t *testing.T, torch *torchtest.Torch, dir string, script ...string) string {
	t.Helper()
	cmd, path := withTorchrun(t, torch, dir, script...)
	k := begin(t, dir, cmd, path)
	if code := k.end(); code != 1 {
		t.Errorf("exit code %d of torchrun\n%s", code, k.err)
	}
	for _, m := range blamed.FindAllStringSubmatch(k.err.String(), -1) {
		if m[1] == "1" {
			return m[2]
		}
	}
	return ""
}

// TestWithoutShim: with --no-shim rank 0 hosts the store, in every version; builds without libuv need their variable then.
func TestWithoutShim(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		dir := place(t, torch)
		ours := filepath.Join(dir, "ours")
		if err := os.Mkdir(ours, 0o755); err != nil {
			t.Fatal(err)
		}
		j := cohortWith(t, torch, dir, []string{"USE_LIBUV=0"}, []string{"--nproc-per-node", "2", "--no-shim"}, "-u",
			dir+"/reduce.py", ours)
		if code := j.end(); code != 0 {
			t.Fatalf("exit code %d\n%s%s", code, j.out, j.err)
		}
		for rank, r := range results(t, ours) {
			if r.Sum != 3 || r.Env["TORCHELASTIC_USE_AGENT_STORE"] != "False" {
				t.Errorf("rank %d: sum %v, agent store %s", rank, r.Sum, r.Env["TORCHELASTIC_USE_AGENT_STORE"])
			}
		}
	})
}

// TestNodeJoins: a node that joins a running job of PyTorch workers makes it begin anew with both. torchrun's job dies
// of that after a minute.
func TestNodeJoins(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		dir := place(t, torch)
		options := []string{
			"--nproc-per-node", "1", "--nnodes", "1:2", "--rdzv-id", "joins", "--rdzv-endpoint",
			fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t)), "--rdzv-conf", "last_call_timeout=1,heartbeat_timeout=30",
		}
		env := []string{"STEPS=1000000"}
		first := cohortWith(t, torch, dir, env, options, "-u", dir+"/loop.py")
		first.wait(first.out, "joined", 1)
		second := cohortWith(t, torch, dir, env, options, "-u", dir+"/loop.py")
		first.wait(first.out, "joined", 2)
		second.wait(second.out, "joined", 1)
		if !strings.Contains(first.out.String(), "world 2 restart 1") || !strings.Contains(second.out.String(), "world 2 restart 1") {
			t.Errorf("the first prints\n%s\nthe second\n%s", first.out, second.out)
		}
		_ = first.Process.Signal(syscall.SIGTERM)
		if a, b := first.end(), second.end(); a != 1 || b != 1 {
			t.Errorf("exit codes %d and %d\n%s%s", a, b, first.err, second.err)
		}
	})
}
