// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	_ "embed"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/torchtest"
)

//go:embed suite.py
var suiteScript string

var suiteTests = flag.String("suite", "", "a regular expression: which of PyTorch's own tests run over our store; empty for those that are named in the test")

// suite is some of PyTorch's own tests.
type suite struct {
	tests  string // a regular expression
	passed int    // how many pass over a store of PyTorch's; the others are skipped, most of them for want of a GPU
}

// failsAnyway are tests that fail over PyTorch's own store, too: those of 2.6 expect the words of an older Python's error.
var failsAnyway = map[string]bool{"test_gather_object": true, "test_gather_object_subgroup": true}

// TestServerSuites runs PyTorch's own tests over stores of ours, each over one of its own. What passes over PyTorch's must pass
// over ours.
func TestServerSuites(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		if !torch.About(t).Since(2, 5) {
			torch.NotApplicable(t, "has no expecttest, which its own tests import")
		}
		suites := map[string]suite{
			"distributed": {"object|barrier|new_subgroups|send_recv_any|ddp_join|DistributedDataParallel$|undefined_grad", 12},
		}
		if torch.About(t).Has(torchtest.TensorPipe) {
			suites["rpc.dist_autograd_test.DistAutogradTest"] = suite{"backward_(simple|rref|multiple|different|autograd)|context_cleanup", 17}
			suites["rpc.dist_optimizer_test.DistOptimizerTest"] = suite{".", 4}
		}
		for name, s := range suites {
			t.Run(name, func(t *testing.T) {
				if *suiteTests != "" {
					s = suite{*suiteTests, 1}
				} else if torch.Name != torchtest.V26.Name && torch.Name != torchtest.Newest.Name {
					s.passed = 1 // it was not counted
				}
				p := torch.Start(t, torchtest.Script{Source: suiteScript, Shared: []string{"torch._dynamo", "torch.testing._internal.common_distributed"}, Args: []string{name, s.tests}})
				var results [][]string
				for line := p.Line(t); line != "done"; line = p.Line(t) {
					if line == "store" {
						p.Send(t, strconv.Itoa(serve(t).Port()))
						continue
					}
					results = append(results, strings.Fields(line))
					t.Log(line)
				}
				for _, wrong := range s.judge(results) {
					t.Error(wrong)
				}
			})
		}
	})
}

// judge returns what is wrong with results, each of which is the words of a line of suite.py.
func (s suite) judge(results [][]string) (wrong []string) {
	passed := 0
	for _, words := range results {
		name, ours := words[1], words[2]
		switch {
		case ours == "passed":
			passed++
		case ours == "failed" && words[3] == "passed":
			wrong = append(wrong, name+" fails over our store only")
		case ours == "failed" && !failsAnyway[name]:
			wrong = append(wrong, name+" fails over PyTorch's store, too, where it should pass: nothing was compared")
		}
	}
	if passed < s.passed {
		wrong = append(wrong, fmt.Sprintf("%d tests have passed, want %d", passed, s.passed))
	}
	return wrong
}

// TestSuiteVerdict: one test that passes does not make up for others that fail over both stores, or that do not run.
func TestSuiteVerdict(t *testing.T) {
	for _, c := range []struct {
		lines string
		wrong int
	}{
		{"test a passed,test b passed,test c skipped", 0},
		{"test a passed,test b passed,test test_gather_object failed failed", 0},
		{"test a passed,test b passed,test c failed passed", 1},
		{"test a passed,test b passed,test c failed failed", 1},
		{"test a passed,test b failed failed", 2},
		{"test a passed,test b skipped", 1},
		{"test a passed", 1},
	} {
		var results [][]string
		for line := range strings.SplitSeq(c.lines, ",") {
			results = append(results, strings.Fields(line))
		}
		if got := (suite{passed: 2}).judge(results); len(got) != c.wrong {
			t.Errorf("%s: %q", c.lines, got)
		}
	}
}
