// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// TestLaunchersDoNotMix: an agent of torchrun that comes to the rendezvous of "cohort run", or a "cohort run" that
// comes to torchrun's, ends with an error, the latter with one that says why, and the job whose rendezvous it is goes
// on.
func TestLaunchersDoNotMix(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		const words = "torchrun and cohort run cannot launch parts of one job"
		dir := place(t, torch)
		endpoint := func() string { return fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t)) }
		ours := func(at string) *job {
			return cohortRun(t, torch, dir, []string{
				"--nproc-per-node", "1", "--nnodes", "2", "--rdzv-id", "job",
				"--rdzv-endpoint", at,
			}, "-u", dir+"/end.py", "0")
		}
		theirs := func(at string) *job {
			cmd, path := withTorchrun(t, torch, dir, "--nnodes", "2", "--nproc_per_node", "1", "--rdzv_endpoint", at,
				"--rdzv_conf", "read_timeout=5", dir+"/end.py", "0")
			return begin(t, dir, cmd, path)
		}
		at := endpoint()
		first := ours(at)
		first.wait(first.err, "1 of 2 nodes are present", 1)
		other := theirs(at)
		c := other.end()
		for try := 1; try < tries && !strings.Contains(first.err.String(), words); try++ { // it gives up early on a slow machine
			other = theirs(at)
			c = other.end()
		}
		first.wait(first.err, words, 1)
		second := ours(at)
		if a, b := first.end(), second.end(); a != 0 || b != 0 || c == 0 { // 1.13 aborts
			t.Errorf("ours end with %d and %d, torchrun with %d\n%s\n%s\n%s", a, b, c, first.err, second.err, other.err)
		}
		at = endpoint()
		first = theirs(at)
		testkit.Until(t, "torchrun hosts its store", func() bool {
			c, err := net.Dial("tcp", at)
			if err == nil {
				_ = c.Close()
			}
			return err == nil
		})
		other = ours(at)
		if code := other.end(); code != 1 || !strings.Contains(other.err.String(), words) {
			t.Errorf("ours ends with %d\n%s", code, other.err)
		}
		second = theirs(at)
		if a, b := first.end(), second.end(); a != 0 || b != 0 {
			t.Errorf("torchrun's end with %d and %d\n%s\n%s", a, b, first.err, second.err)
		}
	})
}

// TestTwoLaunchersMeet: ranks that torchrun has started and ranks that "cohort run" has started meet at a tcp://
// address, as docs/mixed-group.md says.
func TestTwoLaunchersMeet(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		if !torch.About(t).Since(2, 0) {
			torch.NotApplicable(t, "puts the number of torchrun's attempt before its keys")
		}
		dir, at := place(t, torch), fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t))
		if !torch.About(t).Since(2, 14) { // else rank 0 hosts the store
			s, err := tcpstore.Listen(at)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.Close() }()
		}
		cmd, path := withTorchrun(t, torch, dir, dir+"/two.py", at, "0", "4")
		theirs := begin(t, dir, cmd, path, "USE_LIBUV=0")
		ours := cohortWith(t, torch, dir, []string{"USE_LIBUV=0"}, []string{"--nproc-per-node", "2"}, "-u", dir+"/two.py", at, "2", "4")
		if a, b := theirs.end(), ours.end(); a != 0 || b != 0 {
			t.Errorf("torchrun ends with %d, ours with %d\n%s%s%s%s", a, b, theirs.out, theirs.err, ours.out, ours.err)
		}
		for rank := range 4 {
			if text := theirs.out.String() + ours.out.String(); !strings.Contains(text, fmt.Sprintf("rank %d has 10\n", rank)) {
				t.Errorf("no word of rank %d in\n%s", rank, text)
			}
		}
	})
}

// TestDemo: where a Python has torch, a PyTorch rank takes part in the training of "cohort demo", and is found when it hangs.
func TestDemo(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		dir := place(t, torch)
		python := filepath.Join(dir, "python3")
		text := "#!/bin/sh\nexec " + strings.Join(torch.Command(), " ") + " \"$@\"\n"
		if err := os.WriteFile(python, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(program(t), "demo", "--workers", "3", "--timeout", "3m")
		cmd.Env = append(os.Environ(), "PYTHON_EXEC="+python, "TMPDIR="+dir)
		out, err := cmd.CombinedOutput()
		for _, want := range []string{
			`(?m)^  \[rank 2\] takes part with PyTorch \d+\.\d+`,
			`(?m)^  \[ranks? .*2\] trained a network together, 200 steps: the mean loss fell from 0\.\d+ to 0\.\d+$`,
			`Rank 2 has not reached all_reduce number \d+ of default_pg; it is in load_batch \(demo_rank\.py:\d+\)`,
			`(?m)^What to try next:$`,
		} {
			if err != nil || !regexp.MustCompile(want).Match(out) {
				t.Fatalf("%v, or no %q in\n%s", err, want, out)
			}
		}
		if strings.Contains(string(out), "did not play along") {
			t.Errorf("it played without PyTorch:\n%s", out)
		}
	})
}
