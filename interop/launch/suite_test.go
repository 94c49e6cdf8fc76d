// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"io"
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

// wrapper returns a program that starts the Python of a version.
func wrapper(t *testing.T, torch *torchtest.Torch) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "python")
	text := "#!/bin/sh\nexec " + strings.Join(torch.Command(), " ") + " \"$@\"\n"
	if err := os.WriteFile(name, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestRunPath: a script of --run-path sees the same under both launchers.
func TestRunPath(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		dir := place(t, torch)
		script := []string{"--run-path", dir + "/runpath.py", "--lr", "1", "${local_rank}"}
		var ours, theirs bytes.Buffer
		_ = runInto(t, dir, exec.Command(program(t), append([]string{
			"run", "--evidence", "-", "--nproc-per-node", "2", "--python", wrapper(t, torch),
		}, script...)...), &ours)
		script[0] = "--run_path" // 1.13 has no other spelling
		cmd, path := withTorchrun(t, torch, dir, append([]string{"-r", "0"}, script...)...)
		_ = runInto(t, dir, cmd, &theirs, path)
		ourLines, theirLines := said(&ours), said(&theirs)
		if len(ourLines) != 2 || !slices.Equal(ourLines, theirLines) {
			t.Errorf("cohort run: %q\ntorchrun:   %q", ourLines, theirLines)
		}
	})
}

// said returns the lines of a script, without what a library prints, in the order of the ranks.
func said(r io.Reader) []string {
	text, _ := io.ReadAll(r)
	var all []string
	for line := range strings.Lines(string(text)) {
		if _, after, found := strings.Cut(line, "said "); found {
			all = append(all, strings.TrimSpace(after))
		}
	}
	slices.Sort(all)
	return all
}
