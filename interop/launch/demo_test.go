// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

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
