// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// suite are the tests of PyTorch's launcher that "cohort run" must pass in place of torchrun. docs/conformance.md says why the others
// are not among them.
var suite = map[string][]string{
	"test_run.py": {
		"ElasticLaunchTest.test_launch_user_script_python",
		"ElasticLaunchTest.test_launch_user_script_python_caffe2_bc",
		"ElasticLaunchTest.test_launch_user_script_bash",
		"ElasticLaunchTest.test_launch_user_script_default_nproc",
		"ElasticLaunchTest.test_launch_with_env_vars",
		"ElasticLaunchTest.test_nproc_launch_auto_configurations",
		"ElasticLaunchTest.test_nproc_launch_number_configurations",
		"ElasticLaunchTest.test_nproc_launch_unknown_configurations",
		"ElasticLaunchTest.test_nproc_gpu_launch_configurations",
		"ElasticLaunchTest.test_launch_elastic",
		"ElasticLaunchTest.test_launch_elastic_multiple_agents",
		"ElasticLaunchTest.test_launch_standalone",
		"ElasticLaunchTest.test_launch_run_path",
		"ElasticLaunchTest.test_is_torchelastic_launched",
		"ElasticLaunchTest.test_is_not_torchelastic_launched",
		"ElasticLaunchTest.test_logs_logs_spec_entrypoint_must_be_defined",
		"ElasticLaunchTest.test_init_method_tcp_with_torchelastic",
		"ElasticLaunchTest.test_init_method_env_with_torchelastic",
		"ElasticLaunchTest.test_capture_logs_using_default_logs_specs",
	},
	"launch_test.py": {"LaunchTest.test_launch_without_env", "LaunchTest.test_launch_with_env"},
}

// TestTorchLauncherTests runs PyTorch's own tests of its launcher, from Debian's source package, with our command.
func TestTorchLauncherTests(t *testing.T) {
	t.Parallel()
	torch := torchtest.V26
	torch.Need(t)
	if out, err := exec.CommandContext(t.Context(), "../../scripts/fetch-torch-tests").CombinedOutput(); err != nil {
		if os.Getenv("COHORT_INTEROP") == "required" {
			t.Fatalf("the sources of the tests are required: %v: %s", err, out)
		}
		t.Skipf("this machine cannot fetch the sources of the tests: %v: %s", err, out)
	}
	dir := place(t, torch)
	if err := os.CopyFS(dir, os.DirFS("/var/lib/torch-2.6-tests/launcher")); err != nil {
		t.Fatal(err)
	}
	command, err := os.ReadFile(program(t))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "cohort"), command, 0o700)
	}
	if err == nil { // as in PyTorch's repository
		err = os.Chmod(filepath.Join(dir, "bin/test_script.sh"), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	for file, names := range suite {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			python := torch.Command()
			args := slices.Concat(python[1:], []string{dir + "/suite.py", dir + "/cohort", dir + "/" + file}, names)
			cmd := exec.CommandContext(t.Context(), python[0], args...)
			cmd.Env = environment(dir)
			var problems strings.Builder
			cmd.Stderr = &problems
			out, err := cmd.Output()
			if err != nil {
				t.Errorf("%v", err)
			}
			for _, name := range names {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					if !strings.Contains(string(out), "\nsuite "+name+" ok\n") {
						t.Errorf("%s of PyTorch fails:\n%s", name, problems.String())
					}
				})
			}
		})
	}
}
