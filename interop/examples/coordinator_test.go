// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package examples_test

import (
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

// trainScript puts train.py where an installation finds it.
func trainScript(t *testing.T, torch *torchtest.Torch) string {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("..", "..", "examples", "reconfigure", "train.py"))
	if err != nil {
		t.Fatal(err)
	}
	host, inside := torch.TempDir(t)
	if err := os.WriteFile(filepath.Join(host, "train.py"), source, 0o600); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(inside, "train.py")
}

var memberProcess = regexp.MustCompile(`member (\d+) \(process (\d+)\): rank (\d) of 4 at step (\d+)`)

// TestLaunchedReconfigure has the launcher start four members and a spare, in PyTorch, and kills a member in the middle of training as
// kill -9 does: the spare takes its place, the loss goes on falling, and no process is started again.
func TestLaunchedReconfigure(t *testing.T) {
	torchtest.Newest.Need(t)
	args := append([]string{"run", "--nproc-per-node", "5", "--members", "4", "--evidence", "-", "--"}, torchtest.Newest.Command()...)
	job := startGo(t, testkit.BuildProgram(t, "cmd/cohort"), append(args, "-u", trainScript(t, torchtest.Newest), "--steps", "200")...)
	all := []trainee{job}
	until(t, "step 20", all, func() bool { return strings.Count(job.output(), "step 20 loss") == 4 })
	victim := ""
	for _, m := range memberProcess.FindAllStringSubmatch(job.output(), -1) {
		if m[3] == "1" {
			victim = m[1]
			pid, _ := strconv.Atoi(m[2])
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := job.wait(); err != nil {
		t.Fatalf("%v\n%s", err, job.output())
	}
	printed := job.output()
	if !strings.Contains(printed, "was killed by SIGKILL") ||
		!strings.Contains(printed, "the job goes on with 4 workers, and the next failure ends the job") {
		t.Errorf("the launcher does not print that it continues:\n%s", printed)
	}
	processes, last := map[string][]string{}, map[string][]string{}
	for _, m := range memberProcess.FindAllStringSubmatch(printed, -1) {
		if !slices.Contains(processes[m[1]], m[2]) {
			processes[m[1]] = append(processes[m[1]], m[2])
		}
		last[m[1]] = m
	}
	if len(processes) != 5 {
		t.Errorf("the members were %v\n%s", processes, printed)
	}
	for member, pids := range processes {
		if len(pids) != 1 {
			t.Errorf("member %s had the processes %v", member, pids)
		}
		if member == victim {
			continue
		}
		at, _ := strconv.Atoi(last[member][4])
		if at < 20 || !strings.Contains(printed, fmt.Sprintf("member %s done at step 200", member)) {
			t.Errorf("member %s went on at step %d, and did not end:\n%s", member, at, printed)
		}
	}
	losses := lossAt.FindAllStringSubmatch(printed, -1)
	if loss, _ := strconv.ParseFloat(losses[len(losses)-1][2], 64); loss > 0.05 {
		t.Errorf("the loss ends with %v\n%s", loss, printed)
	}
}

// TestLaunchedOnNodes has two launchers, as on two nodes, start two PyTorch members each, of which one is a spare, and kills a member: the
// group goes on with the spare, whichever launcher started it.
func TestLaunchedOnNodes(t *testing.T) {
	torchtest.Newest.Need(t)
	args := append([]string{
		"run", "--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:" + strconv.Itoa(testkit.FreePort(t)),
		"--nproc-per-node", "2", "--members", "3", "--evidence", "-", "--",
	}, torchtest.Newest.Command()...)
	args = append(args, "-u", trainScript(t, torchtest.Newest), "--steps", "200")
	program := testkit.BuildProgram(t, "cmd/cohort")
	nodes := []trainee{startGo(t, program, args...), startGo(t, program, args...)}
	printed := func() string { return nodes[0].output() + nodes[1].output() }
	until(t, "step 20", nodes, func() bool { return strings.Count(printed(), "step 20 loss") == 3 })
	m := regexp.MustCompile(`member (\d) \(process (\d+)\): rank 1 of 3`).FindStringSubmatch(printed())
	if m == nil {
		t.Fatalf("no process is rank 1\n%s", printed())
	}
	pid, _ := strconv.Atoi(m[2])
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes {
		if err := node.wait(); err != nil {
			t.Errorf("%v\n%s", err, node.output())
		}
	}
	for member := range 4 {
		if done := strings.Contains(printed(), fmt.Sprintf("member %d done at step 200", member)); done == (strconv.Itoa(member) == m[1]) {
			t.Errorf("member %d: done is %v, and %s was killed\n%s", member, done, m[1], printed())
		}
	}
}

// TestLaunchedHang stops a member (SIGSTOP): it is left out and replaced, and killed when the others have finished.
func TestLaunchedHang(t *testing.T) {
	if os.Getenv("COHORT_INTEROP") == "" {
		t.Skip("interop: left out (COHORT_INTEROP is not set; 'make interop' runs it)")
	}
	job := startGo(t, testkit.BuildProgram(t, "cmd/cohort"), "run", "--nproc-per-node", "5", "--members", "4", "--evidence", "-",
		testkit.BuildProgram(t, "examples/reconfigure"), "-steps", "100")
	until(t, "step 20", []trainee{job}, func() bool { return strings.Count(job.output(), "step 20 loss") == 4 })
	m := regexp.MustCompile(`go member \d+ \(process (\d+)\): rank 1 of 4`).FindStringSubmatch(job.output())
	if m == nil {
		t.Fatalf("no process is rank 1\n%s", job.output())
	}
	pid, _ := strconv.Atoi(m[1])
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := job.wait(); err != nil || strings.Count(job.output(), "done at step 100") != 4 ||
		!strings.Contains(job.output(), "no heartbeat, and the group has finished") {
		t.Errorf("%v\n%s", err, job.output())
	}
}

// TestCoordinatorRestarts kills the coordinator while four members train, and starts it again: the group goes on, and a member that
// dies, before or after that, is replaced. No round is formed but the first and the one after the death.
func TestCoordinatorRestarts(t *testing.T) {
	if os.Getenv("COHORT_INTEROP") == "" {
		t.Skip("interop: left out (COHORT_INTEROP is not set; 'make interop' runs it)")
	}
	cohort, program := testkit.BuildProgram(t, "cmd/cohort"), testkit.BuildProgram(t, "examples/reconfigure")
	for _, c := range []struct {
		kinds  string
		before bool // a member dies while the coordinator is down
	}{{"tgtgt", false}, {"ggggg", true}} {
		t.Run(fmt.Sprint(c.kinds, c.before), func(t *testing.T) {
			addr := "127.0.0.1:" + strconv.Itoa(testkit.FreePort(t))
			store := startGo(t, cohort, "store", "serve", "--addr", addr)
			begin := func() trainee {
				return startGo(t, cohort, "coordinate", "--addr", addr, "--members", "4", "--silence", "3s")
			}
			first := begin()
			all := startTrainees(t, program, addr, c.kinds, 400)
			victim, spare := -1, -1
			until(t, "step 20", append(all, store, first), func() bool {
				victim, spare = places(all, "step 20 ")
				return victim >= 0 && spare >= 0
			})
			first.kill()
			_ = first.wait()
			if c.before {
				all[victim].kill()
			} else {
				// The group goes on without a coordinator.
				until(t, "step 60", all, func() bool { return strings.Contains(all[victim].output(), "step 60 ") })
			}
			second := begin()
			until(t, "the second coordinator", append(all, second),
				func() bool { return strings.Contains(second.output(), "earlier coordinator") })
			if !c.before {
				all[victim].kill()
			}
			for i, w := range all {
				if i == victim {
					continue
				}
				if err := w.wait(); err != nil || !strings.Contains(w.output(), "done at step 400") {
					t.Errorf("%d (%s): %v\n%s", i, w.name, err, w.output())
				}
				want := 2
				if i == spare {
					want = 1
				}
				if places := memberAt.FindAllString(w.output(), -1); len(places) != want {
					t.Errorf("%d (%s) was in %d groups, want %d\n%s", i, w.name, len(places), want, w.output())
				}
			}
			err := second.wait()
			rounds := roundBegins.FindAllString(second.output(), -1)
			if slices.Sort(rounds); err != nil || len(slices.Compact(rounds)) != 1 {
				t.Errorf("the second coordinator: %v\n%s", err, second.output())
			}
		})
	}
}

// roundBegins is what a coordinator says to each member of a round.
var roundBegins = regexp.MustCompile(`"round begins" uuid=\d+`)

// TestStoreDies kills the store while members train and one waits, and while a round forms without one that has died: all of them end with
// an error that says so, within a bound.
func TestStoreDies(t *testing.T) {
	if os.Getenv("COHORT_INTEROP") == "" {
		t.Skip("interop: left out (COHORT_INTEROP is not set; 'make interop' runs it)")
	}
	cohort, program := testkit.BuildProgram(t, "cmd/cohort"), testkit.BuildProgram(t, "examples/reconfigure")
	for _, forming := range []bool{false, true} {
		t.Run(fmt.Sprint("forming=", forming), func(t *testing.T) {
			addr := "127.0.0.1:" + strconv.Itoa(testkit.FreePort(t))
			store := startGo(t, cohort, "store", "serve", "--addr", addr)
			coordinator := startGo(t, cohort, "coordinate", "--addr", addr, "--members", "4")
			all := startTrainees(t, program, addr, "tgtgt", 1<<20)
			victim, spare := -1, -1
			until(t, "step 20", append(all, store, coordinator), func() bool {
				victim, spare = places(all, "step 20 ")
				return victim >= 0 && spare >= 0
			})
			if forming {
				all[victim].kill()
				_ = all[victim].wait()
				until(t, "the end of the round", append(all, coordinator),
					func() bool { return strings.Contains(coordinator.output(), "round over") })
			} else {
				victim = -1
			}
			store.kill()
			killed := time.Now()
			for i, w := range all {
				if i == victim {
					continue
				}
				if w.wait() == nil {
					t.Errorf("%d (%s) ended with success\n%s", i, w.name, w.output())
				}
				want := map[string]string{
					"go":      "elastic: .*(unavailable|the server closed the connection)",
					"PyTorch": "the store has ended",
				}[w.name]
				if !regexp.MustCompile(want).MatchString(w.output()) {
					t.Errorf("%d (%s) does not say %q\n%s", i, w.name, want, w.output())
				}
			}
			t.Logf("all members had ended %v after the store", time.Since(killed))
			if coordinator.wait() == nil {
				t.Errorf("the coordinator ended with success\n%s", coordinator.output())
			}
		})
	}
}

// TestStoreStops kills a member and stops the store at once, so that the members that are left find it stopped, for longer than a member
// may be silent. When it goes on, the spare takes the dead one's place, and no other member is left out: no other round is formed.
func TestStoreStops(t *testing.T) {
	if os.Getenv("COHORT_INTEROP") == "" {
		t.Skip("interop: left out (COHORT_INTEROP is not set; 'make interop' runs it)")
	}
	cohort, program := testkit.BuildProgram(t, "cmd/cohort"), testkit.BuildProgram(t, "examples/reconfigure")
	const silence = 5 * time.Second
	addr := "127.0.0.1:" + strconv.Itoa(testkit.FreePort(t))
	store := startGo(t, cohort, "store", "serve", "--addr", addr)
	coordinator := startGo(t, cohort, "coordinate", "--addr", addr, "--members", "4", "--silence", silence.String())
	all := startTrainees(t, program, addr, "tgtgt", 200)
	victim, spare := -1, -1
	until(t, "step 20", append(all, store, coordinator), func() bool {
		victim, spare = places(all, "step 20 ")
		return victim >= 0 && spare >= 0
	})
	all[victim].kill()
	store.signal(syscall.SIGSTOP)
	time.Sleep(silence * 5 / 2)
	store.signal(syscall.SIGCONT)
	for i, w := range all {
		if i == victim {
			continue
		}
		if err := w.wait(); err != nil || !strings.Contains(w.output(), "done at step 200") {
			t.Errorf("%d (%s): %v\n%s", i, w.name, err, w.output())
		}
	}
	err := coordinator.wait()
	rounds := roundBegins.FindAllString(coordinator.output(), -1)
	if slices.Sort(rounds); err != nil || len(slices.Compact(rounds)) != 2 || strings.Count(coordinator.output(), "has not responded") > 1 {
		t.Errorf("the coordinator: %v\n%s", err, coordinator.output())
	}
}
