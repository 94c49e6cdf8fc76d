// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package torchtest

import (
	"context"
	"strings"
	"testing"
)

func TestScriptRuns(t *testing.T) {
	Each(t, func(t *testing.T, torch *Torch) {
		out := torch.Run(t, Script{
			Source:  "import sys, torch, stub\nprint(torch.__version__, sys.argv[1], stub.f())",
			Modules: map[string]string{"stub": "def f(): return 7"},
			Args:    []string{"hello"},
		})
		if out != torch.About(t).Version+" hello 7\n" {
			t.Fatalf("got %q", out)
		}
	})
}

func TestScriptTalksAndFails(t *testing.T) {
	Each(t, func(t *testing.T, torch *Torch) {
		p := torch.Start(t, Script{Source: "import sys\nprint('ready')\nsys.exit(int(input()))"})
		p.Expect(t, "ready")
		p.Send(t, "3")
		if code, err := p.Wait(context.Background()); code != 3 || err != nil {
			t.Fatalf("exit %d, %v", code, err)
		}
		p = torch.Start(t, Script{Source: "import time\ntime.sleep(60)"})
		p.Kill()
		if code, err := p.Wait(context.Background()); code != -9 || err != nil {
			t.Fatalf("exit %d, %v", code, err)
		}
	})
}

// verdict is a test that notes how it ended.
type verdict struct {
	testing.TB
	how string
}

func (v *verdict) Helper()               {}
func (v *verdict) Fatalf(string, ...any) { v.ends("failed") }
func (v *verdict) Skipf(string, ...any)  { v.ends("skipped") }

func (v *verdict) ends(how string) {
	if v.how == "" { // a real test ends here
		v.how = how
	}
}

// TestMissingInstallation: what is required and missing fails the test, and is skipped otherwise.
func TestMissingInstallation(t *testing.T) {
	for mode, want := range map[string]string{"required": "failed", "auto": "skipped"} {
		t.Setenv("COHORT_INTEROP", mode)
		v := &verdict{TB: t}
		inFolder("missing", t.TempDir()).Need(v)
		if v.how != want {
			t.Errorf("COHORT_INTEROP=%s: %q, want %q", mode, v.how, want)
		}
	}
}

// TestInstallationsSayWhatTheyAre: versions and features are found out by asking.
func TestInstallationsSayWhatTheyAre(t *testing.T) {
	Each(t, func(t *testing.T, torch *Torch) {
		about := torch.About(t)
		says := []string{"PyTorch " + about.Version}
		for _, f := range []feature{TensorPipe, libUV, Halves} {
			if !about.Has(f) {
				says = append(says, "no "+string(f))
			}
		}
		t.Logf("count: installation %s: %s", torch.Name, strings.Join(says, ", ")) // internal/devtools/compat reads it
		switch torch {
		case V113:
			if !strings.HasPrefix(about.Version, "1.13") || !about.Has(TensorPipe) {
				t.Errorf("%+v", about)
			}
		case V26:
			if !strings.HasPrefix(about.Version, "2.6") || !about.Has(TensorPipe) || !about.Has(Halves) {
				t.Errorf("%+v", about)
			}
		case Newest:
			if !about.Since(2, 14) {
				t.Errorf("%+v", about)
			}
			if about.Since(2, 15) { // internal/devtools/testcount reads it
				t.Logf(
					"count: only reported: torch-%s: PyTorch %s is newer than what is known, so what fails with it does not fail "+
						"the run", torch.Name, about.Version)
			}
		}
	})
}
