// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"hash"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// loudMB is what each of two ranks prints.
var loudMB = flag.Int("launch.loud", 16, "megabytes that each of two ranks prints; 512 make the gigabyte of the full test")

// tally counts the lines of each rank and hashes them, without keeping them.
type tally struct {
	lines map[byte]int
	sums  map[byte]hash.Hash
	odd   []string
	rest  []byte
}

func newTally() *tally { return &tally{lines: map[byte]int{}, sums: map[byte]hash.Hash{}} }

func (c *tally) Write(b []byte) (int, error) {
	n := len(b)
	c.rest = append(c.rest, b...)
	for {
		end := bytes.IndexByte(c.rest, '\n')
		if end < 0 {
			c.rest = bytes.Clone(c.rest)
			return n, nil
		}
		line := c.rest[:end+1]
		c.rest = c.rest[end+1:]
		if len(line) != 99 || !bytes.HasPrefix(line, []byte("rank ")) {
			c.odd = append(c.odd, string(line[:min(len(line), 80)]))
			continue
		}
		c.lines[line[5]]++
		if c.sums[line[5]] == nil {
			c.sums[line[5]] = sha256.New()
		}
		c.sums[line[5]].Write(line)
	}
}

func (c *tally) String() string {
	parts := []string{fmt.Sprintf("%d other lines %.3q", len(c.odd), c.odd)}
	for _, rank := range []byte("01") {
		if c.sums[rank] != nil {
			parts = append(parts, fmt.Sprintf("rank %c: %d lines, %x", rank, c.lines[rank], c.sums[rank].Sum(nil)))
		}
	}
	return strings.Join(parts, "; ")
}

// withTorchrun returns the command that runs a script under PyTorch's launcher, and the environment that it needs.
func withTorchrun(t *testing.T, torch *torchtest.Torch, dir string, script ...string) (*exec.Cmd, string) {
	t.Helper()
	shim := filepath.Join(dir, "shim")
	source, err := os.ReadFile("../../internal/launch/rundir/shim/sitecustomize.py")
	if err == nil {
		err = os.MkdirAll(shim, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(shim, "sitecustomize.py"), source, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	command := torch.Command()
	args := append(command[1:], "-c", torchrun, "--nproc_per_node", "2", "--rdzv_id", "job", "--rdzv_backend", "c10d",
		"--rdzv_endpoint", "127.0.0.1:0", "--monitor_interval", "0.1")
	return exec.Command(command[0], append(args, script...)...), "PYTHONPATH=" + shim
}

// runInto runs a command that must succeed and writes its stdout into w.
func runInto(t *testing.T, dir string, cmd *exec.Cmd, w io.Writer, env ...string) (stderr string) {
	t.Helper()
	var problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = w, &problems
	cmd.Env = append(environment(dir), env...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(4*time.Minute, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd.Args[0], err, &problems)
	}
	return problems.String()
}

// TestLoudScript: what a script prints, at full speed and much of it, arrives whole and in order from each rank. Under
// torchrun the same arrives, though lines of ranks may be mixed there.
func TestLoudScript(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		dir := place(t, torch)
		script := []string{dir + "/loud.py", strconv.Itoa(*loudMB)}
		name := program(t)
		ours := newTally()
		args := append([]string{"run", "--nproc-per-node", "2", "--evidence", "-"}, torch.Command()...)
		said := runInto(t, dir, exec.Command(name, append(append(args, "-u"), script...)...), ours)
		lines := *loudMB << 20 / (99 * 640) * 640
		for rank := range 2 {
			if want := fmt.Sprintf("rank %d has printed %d lines", rank, lines); !strings.Contains(said, want) {
				t.Errorf("no %q in\n%s", want, said)
			}
			if got := ours.lines["01"[rank]]; got != lines || len(ours.odd) > 0 {
				t.Errorf("%d lines of rank %d arrived, %d were printed: %s", got, rank, lines, ours)
			}
		}
		// torchrun's ranks write to the same pipe, so each gets a file here.
		cmd, path := withTorchrun(t, torch, dir, append([]string{"-r", "3", "--log_dir", dir + "/logs"}, script...)...)
		_ = runInto(t, dir, cmd, io.Discard, path)
		theirs := newTally()
		files, _ := filepath.Glob(filepath.Join(dir, "logs", "*", "attempt_0", "[01]", "stdout.log"))
		for _, file := range files {
			f, err := os.Open(file)
			if err == nil {
				_, err = io.Copy(theirs, f)
				_ = f.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if ours.String() != theirs.String() {
			t.Errorf("cohort run: %s\ntorchrun:   %s", ours, theirs)
		}
	})
}

// listOptions prints the options of torchrun and of torch.distributed.launch: their names, and whether they take a value.
const listOptions = `
import json
from torch.distributed.run import get_args_parser
import torch.distributed.launch as launch
parsers = [get_args_parser()]
launch.get_args_parser = lambda: parsers.append(get_args_parser()) or parsers[-1]
launch.parse_args(["t.py"])
print("options", json.dumps(sorted({(o, a.nargs != 0) for p in parsers for a in p._actions for o in a.option_strings})))
`

// TestEveryOption: every option of every torchrun and torch.distributed.launch, in each of its spellings, is one of "cohort run" that
// takes a value or none as there, or is refused with a sentence.
func TestEveryOption(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		dir := place(t, torch)
		var out bytes.Buffer
		command := torch.Command()
		_ = runInto(t, dir, exec.Command(command[0], append(command[1:], "-c", listOptions)...), &out)
		_, text, _ := strings.Cut(out.String(), "options ")
		var options [][]any
		if err := json.Unmarshal([]byte(text), &options); err != nil || len(options) < 20 {
			t.Fatalf("%v: %s", err, out.String())
		}
		values := map[string]string{
			"monitor": "1", "shutdown": "1", "node": "0", "max": "1", "nproc": "2", "nnodes": "1", "master_port": "29999",
			"r": "3", "redirects": "3", "tee": "3", "t": "3",
			"local_ranks": "0", "start": "spawn", "signals": "SIGTERM", "event": "null", "rdzv_backend": "c10d",
			"rdzv_conf": "a=1", "print": "bash", "numa": "node",
		}
		for _, option := range options {
			name, _ := option[0].(string)
			args := []string{"run", "--dry-run", name}
			if valued, _ := option[1].(bool); valued {
				value, best := "x", 0
				for prefix, v := range values {
					if plain := strings.ReplaceAll(strings.TrimLeft(name, "-"), "-", "_"); strings.HasPrefix(plain, prefix) &&
						len(prefix) > best {
						value, best = v, len(prefix)
					}
				}
				args = append(args, value)
			}
			said, err := exec.Command(program(t), append(args, "true")...).CombinedOutput()
			refused := strings.Contains(string(said), "not supported") ||
				strings.Contains(string(said), "--numa-binding node: no accelerator") || strings.Contains(string(said), "cohort completion")
			if err != nil && !refused || strings.Contains(string(said), "unknown option") {
				t.Errorf("%s: %v\n%s", strings.Join(args, " "), err, said)
			}
		}
	})
}

// TestSameResults: DistributedDataParallel and RPC give the same results under both launchers.
func TestSameResults(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		for _, script := range []string{"ddp.py", "rpc.py"} {
			t.Run(script, func(t *testing.T) {
				if script == "rpc.py" && !torch.About(t).Has(torchtest.TensorPipe) {
					torch.NotApplicable(t, "has no TensorPipe")
				}
				dir := place(t, torch)
				ours, theirs := filepath.Join(dir, "ours"), filepath.Join(dir, "theirs")
				for _, d := range []string{ours, theirs} {
					if err := os.Mkdir(d, 0o755); err != nil {
						t.Fatal(err)
					}
				}
				env := "TP_SOCKET_IFNAME=lo"
				j := cohortWith(t, torch, dir, []string{env}, []string{"--nproc-per-node", "2"}, "-u", dir+"/"+script, ours)
				if code := j.end(); code != 0 {
					t.Fatalf("cohort run: exit code %d\n%s%s", code, j.out, j.err)
				}
				cmd, path := withTorchrun(t, torch, dir, dir+"/"+script, theirs)
				_ = runInto(t, dir, cmd, io.Discard, path, env)
				a, b := results(t, ours), results(t, theirs)
				for rank := range 2 {
					if a[rank].Sum == 0 || a[rank].Sum != b[rank].Sum ||
						strings.Join(a[rank].Argv, " ") != strings.Join(b[rank].Argv, " ") {
						t.Errorf("rank %d: %+v and %+v", rank, a[rank], b[rank])
					}
				}
			})
		}
	})
}

// TestLoaderWorkers: data loaders that fork work the same under both launchers, and none of their processes is left behind.
func TestLoaderWorkers(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		dir := place(t, torch)
		ours, theirs := filepath.Join(dir, "ours"), filepath.Join(dir, "theirs")
		for _, d := range []string{ours, theirs} {
			if err := os.Mkdir(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		j := cohortRun(t, torch, dir, []string{"--nproc-per-node", "2"}, "-u", dir+"/loader.py", ours)
		if code := j.end(); code != 0 {
			t.Fatalf("cohort run: exit code %d\n%s%s", code, j.out, j.err)
		}
		cmd, path := withTorchrun(t, torch, dir, dir+"/loader.py", theirs)
		_ = runInto(t, dir, cmd, io.Discard, path)
		a, b := results(t, ours), results(t, theirs)
		for rank := range 2 {
			// Two epochs of two workers each, none of which is the rank itself.
			if a[rank].Sum != b[rank].Sum || a[rank].Sum == 0 || strings.Join(a[rank].Argv, " ") != "4 False" ||
				strings.Join(b[rank].Argv, " ") != "4 False" {
				t.Errorf("rank %d: %+v and %+v", rank, a[rank], b[rank])
			}
		}
	})
}

// TestUnresolvedHostName: a host whose own name does not resolve runs a job. torchrun's rendezvous waits there for five minutes.
func TestUnresolvedHostName(t *testing.T) {
	t.Parallel()
	if out, err := exec.Command("unshare", "--uts", "true").CombinedOutput(); err != nil {
		t.Skipf("this machine cannot give a process a host name of its own: %v %s", err, out)
	}
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		dir := place(t, torch)
		run := append([]string{
			"--uts", "sh", "-c", `hostname no-such-name-here.invalid && exec "$@"`, "sh", program(t), "run",
			"--standalone", "--nproc-per-node", "2", "--evidence", "-",
		}, torch.Command()...)
		cmd := exec.Command("unshare", append(run, "-u", dir+"/reduce.py", dir)...)
		cmd.Env = environment(dir)
		from := time.Now()
		_ = runInto(t, dir, cmd, io.Discard)
		if took := time.Since(from); took > 2*time.Minute {
			t.Errorf("it took %v", took)
		}
		for rank, r := range results(t, dir) {
			if r.Sum != 3 {
				t.Errorf("rank %d: %v", rank, r.Sum)
			}
		}
	})
}

// TestEvidenceOfFailure: when a rank fails, the others are looked at before they are signalled, and what was seen is in the
// bundle. Nothing of the environment, the arguments or the variables of functions is. TestEvidenceInTime of package launch tests
// the time that is allowed for it.
func TestEvidenceOfFailure(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		dir := place(t, torch)
		// On a busy machine the time may be over before all ranks were looked at.
		for try := range 4 {
			j := cohortWith(t, torch, dir, []string{"MY_TOKEN=s3cr3t-token"}, []string{"--nproc-per-node", "3"}, "-u",
				dir+"/evidence.py", "--password=s3cr3t-argument")
			if code := j.end(); code != 1 {
				t.Errorf("exit code %d\n%s", code, j.err)
			}
			r := j.report()
			if r.Sentence != "rank 1 raised ValueError: bad batch" || len(r.Attempts) != 1 || r.Attempts[0].Evidence == nil {
				t.Fatalf("%s\n%s", r.Sentence, j.err)
			}
			e := r.Attempts[0].Evidence
			noSecrets(t, r.Bundle)
			var missing []string
			for _, rank := range []cohort.Rank{0, 2} {
				if s := e.Of(rank); s == nil || !strings.Contains(s.Doing, "wait_for_others") || !strings.Contains(s.Stack, "evidence.py") {
					missing = append(missing, fmt.Sprintf("rank %d: %+v", rank, s))
				}
			}
			switch {
			case len(missing) == 0:
				t.Logf("the look took %v", e.Took)
				return
			case try == 3 || e.Took < 100*time.Millisecond:
				t.Fatalf("the look took %v and misses\n%s", e.Took, strings.Join(missing, "\n"))
			}
		}
	})
}

// noSecrets looks through the files of a bundle.
func noSecrets(t *testing.T, bundle string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(bundle, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		text, err := os.ReadFile(name)
		if bytes.Contains(text, []byte("s3cr3t")) {
			t.Errorf("%s holds a secret:\n%s", name, text)
		}
		return err
	})
	if err != nil || files < 4 {
		t.Errorf("%v: %d files in %s", err, files, bundle)
	}
}
