// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// hangs are the jobs of TestWhy: the kinds of hang.py in their order, and what is said of them. From all kinds but the last of a job its
// ranks can go on to the next, so that they need not start again.
var hangs = [][]struct{ kind, want string }{
	{
		{
			"rpc",
			`^Rank 1 has not called rpc\.shutdown \(hang\.py:117\); it is in load_batch \(hang\.py:28\).*; rank 0 waits( for \d+ s)?\.$`,
		},
		{"init", `^Rank 1 has not called init_process_group; it is in load_batch \(hang\.py:28\).*; rank 0 waits( for \d+ s)?\.$`},
		{"newgroup", `^Rank 1 has not called new_group; it is in load_batch \(hang\.py:28\).*; rank 0 waits( for \d+ s)?\.$`},
		{
			"missing",
			`^Rank 1 has not reached all_reduce \(hang\.py:49\); it is in load_batch \(hang\.py:28\).*, in section "load"( for \d+ s)?; ` +
				`rank 0 waits( for \d+ s)?\.$`,
		},
		{"p2p", `^Rank 0 waits for a message from rank 1 \(hang\.py:58\), which is in load_batch \(hang\.py:28\) and sends none\.$`},
		{
			"gil",
			`^Rank 1 holds the interpreter lock \(GIL\) in a C call at hang\.py:62(, sleeping)?; its other Python threads cannot ` +
				`run; rank 0 waits( for \d+ s)?\.$`,
		},
		{
			"server",
			`^Rank 1 has not reached all_reduce \(hang\.py:87\); it is in read_from_server \(hang\.py:42\), reading from ` +
				`127\.0\.0\.1:\d+.*; rank 0 waits`,
		},
		{"slow", `^Not hung: `},
	},
	{{
		"mismatch",
		`^Rank 0 calls all_reduce \(hang\.py:54\), rank 1 calls broadcast \(hang\.py:52\)|^Rank 1 waits for a message from rank ` +
			`0|^Rank 1 has not reached all_reduce`,
	}},
	{{
		"subgroup",
		`^Ranks 0 and 1 (wait for each other in different groups: .*|are in all_reduce of groups with different names.*: rank 0 of ` +
			`half \(hang\.py:\d+\), rank 1 of the default group \(hang\.py:\d+\))`,
	}},
	{{
		"irecv",
		`^Rank 1 waits for a message, and none has arrived \(hang\.py:\d+, dist\.irecv\(x, 0\)\.wait\(\)\), and rank 0 waits in ` +
			`step \(hang\.py:\d+, w\.wait\(\)\)`,
	}},
	{{"swallowed", `^Rank 0 calls all_reduce \(hang\.py:\d+\), rank 1 calls barrier \(hang\.py:\d+\)`}},
	{{"roots", `^Rank 0 calls broadcast with src=0 \(hang\.py:\d+\), rank 1 calls broadcast with src=1 \(hang\.py:\d+\)`}},
	{{
		"thread",
		`^Rank 1 has not reached all_reduce \(hang\.py:\d+\); it is in step \(hang\.py:\d+\), in Thread\.join of threading\.py.*, ` +
			`for its thread \d+, which is in load_batch \(hang\.py:28\), sleeping; rank 0 waits`,
	}},
	{{"samerank", `^Ranks 0 and 1 call init_process_group with rank=0 \(hang\.py:\d+\)( for \d+ s)?: give each process its own rank\.$`}},
	{{"world", `^The program wants more ranks than there are: WORLD_SIZE is 2, but ranks 0 and 1 wait for rank 2, which does not exist`}},
}

// TestWhy: a job that stands still is explained in one sentence, from outside.
func TestWhy(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		for _, parts := range hangs {
			if parts[0].kind == "rpc" && !torch.About(t).Has(torchtest.TensorPipe) {
				parts = parts[1:]
				t.Run("rpc", func(t *testing.T) { torch.NotApplicable(t, "has no TensorPipe") })
			}
			last := parts[len(parts)-1].kind
			name, dir := jobID(last), place(t, torch)
			args := []string{"-u", dir + "/hang.py"}
			for _, part := range parts {
				args = append(args, part.kind)
			}
			j := cohortRun(t, torch, dir, []string{"--nproc-per-node", "2", "--rdzv-id", name}, args...)
			for _, part := range parts {
				j.wait(j.out, "at "+part.kind+"\n", 2)
				t.Run(part.kind, func(t *testing.T) {
					proof := why(t, name, part.want)
					if part.kind == "missing" {
						if !strings.Contains(proof, "float32[4,2]") {
							t.Errorf("the size of the tensor is not in the proof:\n%s", proof)
						}
						stopped(t, name)
					}
				})
				if part.kind != last {
					signalRank(t, name, 1, syscall.SIGUSR1)
				}
			}
			if last == "swallowed" {
				interrupt(t, j)
				continue
			}
			_ = j.Process.Signal(syscall.SIGTERM)
			j.end()
		}
	})
}

// interrupt presses Ctrl-C: that ends a job within seconds though its ranks hang in C++, and the report says so. torchrun needs 30 s.
func interrupt(t *testing.T, j *job) {
	t.Helper()
	from := time.Now()
	if err := j.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	j.end()
	if took := time.Since(from); took > 25*time.Second {
		t.Errorf("it took %v", took)
	}
	if !strings.Contains(j.report().Sentence, "ended by SIGINT") {
		t.Errorf("%s", j.report().Sentence)
	}
}

// TestInterruptDeaf: Ctrl-C ends ranks whose main thread is in C for good, though their many threads take long to read.
func TestInterruptDeaf(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		dir := place(t, torch)
		j := cohortRun(t, torch, dir, []string{"--nproc-per-node", "2"}, "-u", dir+"/deaf.py")
		j.wait(j.out, "waits\n", 2)
		interrupt(t, j)
	})
}

// stopped has rank 1 stopped for a while: it is found.
func stopped(t *testing.T, name string) {
	t.Helper()
	signalRank(t, name, 1, syscall.SIGSTOP)
	why(t, name, `^Rank 1 is stopped \(SIGSTOP or a debugger, process \d+\)`)
	signalRank(t, name, 1, syscall.SIGCONT)
}

// signalRank sends a signal to a rank of two.
func signalRank(t *testing.T, name string, rank int, sig syscall.Signal) {
	t.Helper()
	out, err := exec.Command(program(t), "ps", "--json", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	var answer struct{ Ranks []struct{ Rank, PID int } }
	if err = json.Unmarshal(out, &answer); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	rows := answer.Ranks
	if len(rows) != 2 || rows[rank].Rank != rank {
		t.Fatalf("%s", out)
	}
	if err := syscall.Kill(rows[rank].PID, sig); err != nil {
		t.Fatal(err)
	}
}

// TestWhyBelowAShell: a rank that a shell has started is found below it.
func TestWhyBelowAShell(t *testing.T) {
	t.Parallel()
	torchtest.V26.Need(t)
	dir, id := place(t, torchtest.V26), jobID("shell")
	args := append([]string{
		"run", "--nproc-per-node", "2", "--rdzv-id", id, "--evidence", "-", "sh", "-c",
		`timeout 600 "$@"; true`, "sh",
	}, torchtest.V26.Command()...)
	j := begin(t, dir, exec.Command(program(t), append(args, "-u", dir+"/hang.py", "missing")...))
	j.wait(j.out, "at missing", 2)
	why(t, id, `^Rank 1 has not reached all_reduce \(hang\.py:49\); it is in load_batch \(hang\.py:28\).*; rank 0 waits( for \d+ s)?\.$`)
	_ = j.Process.Signal(syscall.SIGTERM)
	j.end()
}

// TestWhySpawned: ranks that their program has started are found without a hint, though their environment says nothing.
func TestWhySpawned(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		for _, args := range [][]string{{"spawn"}, {"named", "fork"}, {"unnumbered", "forkserver"}} {
			dir := place(t, torch)
			command := append(torch.Command(), append([]string{"-u", dir + "/spawn.py"}, args...)...)
			cmd := exec.Command(command[0], command[1:]...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			j := begin(t, dir, cmd)
			end := func() { _ = syscall.Kill(-j.Process.Pid, syscall.SIGKILL) }
			t.Cleanup(end)
			j.wait(j.out, "is ready\n", 2)
			pid := regexp.MustCompile(`program (\d+)`).FindStringSubmatch(j.out.String())[1]
			whyAny(t, pid,
				`^Rank 1 has not reached all_reduce \(spawn\.py:20\); it is in load_batch \(spawn\.py:12\).*; rank 0 waits( for \d+ s)?\.$`)
			end()
			j.end()
		}
	})
}

// whyAny asks about all jobs of this host until the answer of one matches.
func whyAny(t *testing.T, job, want string) {
	t.Helper()
	var out []byte
	for limit := time.Now().Add(time.Minute); time.Now().Before(limit); {
		out, _ = exec.Command(program(t), "why", "--json").Output() // another job may end meanwhile
		for lines := json.NewDecoder(bytes.NewReader(out)); ; {
			var answer jobAnswer
			if lines.Decode(&answer) != nil {
				break
			}
			if answer.Job.ID == job && regexp.MustCompile(want).MatchString(answer.Job.Verdict.Sentence) {
				return
			}
		}
	}
	t.Errorf("%s: the answer is\n%s\nwant %s", job, out, want)
}

// jobAnswer is what a test needs of cohort.job.v1.
type jobAnswer struct {
	Job struct {
		ID      string
		Verdict struct {
			Sentence string
			Hung     bool
			Proof    []string
		}
	}
}

// jobID is a name that a second run of these tests on this machine does not use.
func jobID(kind string) string { return fmt.Sprintf("why-%s-%d", kind, os.Getpid()) }

func program(t *testing.T) string {
	t.Helper()
	name, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// why asks until the answer matches: a rank that has announced its hang may not be there yet. It returns the proof.
func why(t *testing.T, job, want string) (proof string) {
	t.Helper()
	proof, _ = whether(t, job, want)
	return proof
}

// whether does the same, and returns whether the job hangs, too.
func whether(t *testing.T, job, want string) (proof string, hung bool) {
	t.Helper()
	answer := jobAnswer{}.Job.Verdict
	for limit := time.Now().Add(time.Minute); time.Now().Before(limit); {
		out, err := exec.Command(program(t), "why", "--json", job).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		var document jobAnswer
		if err := json.Unmarshal(out, &document); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		answer = document.Job.Verdict
		if regexp.MustCompile(want).MatchString(answer.Sentence) {
			return strings.Join(answer.Proof, "\n"), answer.Hung
		}
	}
	t.Errorf("the answer is\n%s\n%s\nwant %s", answer.Sentence, strings.Join(answer.Proof, "\n"), want)
	return "", answer.Hung
}

// TestHangTimeout: a job that stands still is explained by its launcher, stopped, and restarted.
func TestHangTimeout(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		dir := place(t, torch)
		j := cohortRun(t, torch, dir, []string{"--nproc-per-node", "2", "--hang-timeout", "2", "--on-hang", "kill"}, "-u",
			dir+"/hang.py", "missing")
		if code := j.end(); code != 1 {
			t.Errorf("exit code %d", code)
		}
		if s := j.report().Sentence; !strings.HasPrefix(s,
			"the job hung and was stopped: Rank 1 has not reached all_reduce (hang.py:49); it is in load_batch (hang.py:28)") {
			t.Errorf("%s\n%s", s, j.err)
		}
	})
}

// TestStands: ranks at a barrier of the program's own hang though they run, who holds a file lock is named, and a job
// that sleeps is not called hung.
func TestStands(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		name, dir := jobID("stands"), place(t, torch)
		j := cohortRun(t, torch, dir, []string{"--nproc-per-node", "2", "--rdzv-id", name}, "-u", dir+"/stands.py", dir+"/lock")
		for _, part := range []struct {
			kind, want string
			hung       bool
		}{
			{
				"poll",
				`^Ranks 0 and 1 poll the store for the key \S+/arrived \(always 2\), in own_barrier \(stands\.py:\d+\)( for \d+ ` +
					`s)?: no rank changes it\.$`, true,
			},
			{
				"lock",
				`^Rank 1 has not reached barrier \(stands\.py:\d+\); it is in take_lock \(stands\.py:\d+\), waiting for a file lock ` +
					`of /\S+/lock, held by rank 0,( for \d+ s)?; rank 0 waits( for \d+ s)?\.$`, true,
			},
			{
				"sleep",
				`^Perhaps not hung: no rank waits in torch\.distributed; ranks 0 and 1 are in load_batch \(stands\.py:\d+\), ` +
					`sleeping( for \d+ s)?(, and for \d+ s more)?\.$`, false,
			},
		} {
			j.wait(j.out, "at "+part.kind+"\n", 2)
			if _, hung := whether(t, name, part.want); hung != part.hung {
				t.Errorf("%s: hung is %v", part.kind, hung)
			}
			if part.kind != "sleep" {
				signalRank(t, name, 1, syscall.SIGUSR1)
			}
		}
		_ = j.Process.Signal(syscall.SIGTERM)
		j.end()
	})
}
