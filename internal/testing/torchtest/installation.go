// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package torchtest

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// feature is something that a build of PyTorch may lack.
type feature string

// The features.
const (
	TensorPipe feature = "TensorPipe" // and so RPC
	libUV      feature = "libuv"      // the store server
	Halves     feature = "half types" // float16 in gloo, and bfloat16 where the version has it
)

// About is what an installation says about itself.
type About struct {
	Version  string    `json:"version"`
	Python   int       `json:"python"` // 12 for Python 3.12
	Features []feature `json:"features"`
}

// Since reports whether the version is at least major.minor.
func (a About) Since(major, minor int) bool {
	var x, y int
	_, err := fmt.Sscanf(a.Version, "%d.%d", &x, &y)
	return err == nil && (x > major || x == major && y >= minor)
}

// Has reports whether the build has a feature.
func (a About) Has(f feature) bool { return slices.Contains(a.Features, f) }

func inFolder(name, folder string) *Torch {
	return &Torch{Name: name, Root: folder, command: []string{"chroot", folder, "/usr/bin/python3"}}
}

// Installations returns all that tests may use.
var Installations = sync.OnceValue(func() []*Torch {
	all := []*Torch{V113, V26, Newest}
	for entry := range strings.SplitSeq(os.Getenv("COHORT_TORCH_MORE"), ",") {
		name, folder, ok := strings.Cut(strings.TrimSpace(entry), "=")
		switch {
		case !ok:
		case folder == "":
			all = append(all, &Torch{Name: name, command: []string{name}})
		default:
			all = append(all, inFolder(name, folder))
		}
	}
	return all
})

// Each runs test once per installation, as a subtest named after it.
func Each(t *testing.T, test func(t *testing.T, torch *Torch)) {
	t.Helper()
	for _, torch := range Installations() {
		t.Run("torch-"+torch.Name, func(t *testing.T) {
			torch.Need(t)
			test(t, torch)
		})
	}
}

// EachWith is [Each] for a test that needs a feature. An installation whose build lacks it is skipped with a text that the count
// of tests knows: it is neither a failure nor something that is missing here.
func EachWith(t *testing.T, f feature, test func(t *testing.T, torch *Torch)) {
	t.Helper()
	Each(t, func(t *testing.T, torch *Torch) {
		t.Helper()
		if !torch.About(t).Has(f) {
			torch.NotApplicable(t, "has no "+string(f))
		}
		test(t, torch)
	})
}

// cannot starts the reason of a test that does not apply to an installation. internal/devtools/compat and
// internal/devtools/testcount know it.
const cannot = "this build cannot"

// NotApplicable ends a test that has nothing to test with this PyTorch: why goes on after its version, as in "has no meshes". The test
// does not count as passed, nor as left out.
func (tr *Torch) NotApplicable(t testing.TB, why string) {
	t.Helper()
	t.Skipf("%s: PyTorch %s %s", cannot, tr.About(t).Version, why)
}

// aboutSource asks. The types are tried on a group of one rank, which refuses those that gloo was built without.
const aboutSource = `
import json, sys, torch, torch.distributed as dist
features = []
try:
    from torch._C._distributed_rpc import TensorPipeAgent
    features.append("TensorPipe")
except ImportError:
    pass
try:
    dist.TCPStore("127.0.0.1", 0, 1, True, use_libuv=True)
    features.append("libuv")
except Exception:
    pass
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
try:
    dist.all_reduce(torch.ones(2, dtype=torch.float16))
    features.append("half types")
except RuntimeError:
    pass
print(json.dumps({"version": torch.__version__, "features": features, "python": sys.version_info[1]}))
`

// About asks the installation what it is, once.
func (tr *Torch) About(t testing.TB) About {
	t.Helper()
	tr.Need(t)
	tr.ask.Do(func() {
		out := tr.Run(t, Script{Name: "about.py", Source: aboutSource})
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &tr.about); err != nil {
			t.Fatalf("interop: PyTorch %s says %q about itself: %v", tr.Name, out, err)
		}
	})
	return tr.about
}

// Command returns the command line that starts the interpreter of this version, for tests that launch processes
// themselves.
func (tr *Torch) Command() []string { return slices.Clone(tr.command) }

// LastingGoroutines are the goroutines of this package that live until the test process ends, for goleak.
func LastingGoroutines() []goleak.Option {
	var options []goleak.Option
	for _, function := range []string{
		"github.com/cohort-dist/cohort/internal/testing/torchtest.(*Torch).readReplies",
		"github.com/cohort-dist/cohort/internal/testing/torchtest.(*Torch).acceptOutputs",
		"github.com/cohort-dist/cohort/internal/testing/torchtest.(*Torch).boot.func1",
		"os/exec.(*Cmd).watchCtx",
		"os/exec.(*Cmd).Start.func2",
	} {
		options = append(options, goleak.IgnoreAnyFunction(function))
	}
	return options
}
