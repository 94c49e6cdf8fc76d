// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// TestBesideTorchfrtrace: of the same dumps of NCCL ranks "cohort why" says at least what torchfrtrace says, and something
// where that says nothing.
func TestBesideTorchfrtrace(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		if !torch.About(t).Since(2, 14) {
			torch.NotApplicable(t, "has no torchfrtrace")
		}
		dir := place(t, torch)
		command := torch.Command()
		var said bytes.Buffer
		_ = runInto(t, dir, exec.Command(command[0], append(command[1:], "-u", dir+"/frtrace.py", dir)...), &said)
		for _, c := range []struct{ kind, theirs, ours string }{
			{"missing", "missing ranks: {2}", "Rank 2 has not reached all_reduce number 4 of default_pg; ranks 0 and 1 wait."},
			{"operation", "Culprit rank 2; Error type: COLLECTIVE_TYPE_MISMATCH", "Rank 2 calls broadcast (train.py:14) where ranks 0 and 1 call all_reduce (train.py:14) as number 4 of default_pg."},
			{"size", "Culprit rank 2; Error type: SIZE_OR_SYNTAX_MISMATCH", "Rank 2 calls all_reduce with [[4]] where ranks 0 and 1 call all_reduce with [[8]] as number 4 of default_pg."},
			{"dtype", "Culprit rank 2; Error type: COLLECTIVE_DTYPE_MISMATCH", "Rank 2 calls all_reduce of type Half where ranks 0 and 1 call all_reduce of type Float as number 4 of default_pg."},
			{"first", "Culprit rank 0; Error type: COLLECTIVE_TYPE_MISMATCH", "Rank 0 calls broadcast (train.py:14) where ranks 1 and 2 call all_reduce (train.py:14) as number 4 of default_pg."},
			{"network", "", "Ranks 0-2 are in all_reduce number 4 of default_pg with the same sizes, and none makes progress: the network between them is stuck, or one of them died after it had entered."},
		} {
			_, theirs, found := strings.Cut(said.String(), "== "+c.kind+"\n")
			theirs, _, _ = strings.Cut(theirs, "== ")
			if !found || !strings.Contains(theirs, c.theirs) || c.theirs == "" && strings.TrimSpace(theirs) != "" {
				t.Errorf("%s: torchfrtrace says %q, want %q", c.kind, theirs, c.theirs)
			}
			out, err := exec.Command(program(t), "why", filepath.Join(dir, c.kind)).CombinedOutput()
			if err != nil || !strings.Contains(string(out), c.ours) {
				t.Errorf("%s: %v: cohort why says\n%swant %s", c.kind, err, out, c.ours)
			}
		}
	})
}
