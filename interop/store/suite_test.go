// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	_ "embed"
	"flag"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/torchtest"
)

//go:embed suite.py
var suiteScript string

var suiteTests = flag.String("suite", "", "a regular expression: which of PyTorch's own tests run over our store; empty for those that are named in the test")

// TestServerSuites runs PyTorch's own tests over stores of ours, each over one of its own. What passes over PyTorch's must pass
// over ours.
func TestServerSuites(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		if !torch.About(t).Since(2, 5) {
			torch.NotApplicable(t, "has no expecttest, which its own tests import")
		}
		suites := map[string]string{
			"distributed": "object|barrier|new_subgroups|send_recv_any|ddp_join|DistributedDataParallel$|undefined_grad",
		}
		if torch.About(t).Has(torchtest.TensorPipe) {
			suites["rpc.dist_autograd_test.DistAutogradTest"] = "backward_(simple|rref|multiple|different|autograd)|context_cleanup"
			suites["rpc.dist_optimizer_test.DistOptimizerTest"] = "."
		}
		for suite, tests := range suites {
			t.Run(suite, func(t *testing.T) {
				if *suiteTests != "" {
					tests = *suiteTests
				}
				p := torch.Start(t, torchtest.Script{Source: suiteScript, Shared: []string{"torch._dynamo", "torch.testing._internal.common_distributed"}, Args: []string{suite, tests}})
				passed := 0
				for line := p.Line(t); line != "done"; line = p.Line(t) {
					if line == "store" {
						p.Send(t, strconv.Itoa(serve(t).Port()))
						continue
					}
					words := strings.Fields(line)
					switch {
					case words[2] == "passed":
						passed++
					case words[2] == "failed" && words[3] == "passed":
						t.Errorf("%s fails over our store only", words[1])
					}
					t.Log(line)
				}
				if passed == 0 {
					t.Error("no test has passed")
				}
			})
		}
	})
}
