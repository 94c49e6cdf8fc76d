// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// program is an example that runs as a process.
type program struct {
	cmd    *exec.Cmd
	stdout bytes.Buffer
	stderr bytes.Buffer
}

func startExample(t *testing.T, name, url string) *program {
	t.Helper()
	p := &program{cmd: exec.CommandContext(t.Context(), testkit.BuildProgram(t, "examples/"+name), url)}
	p.cmd.Env = append(os.Environ(), "GLOO_SOCKET_IFNAME=lo", "TP_SOCKET_IFNAME=lo")
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

func source(t *testing.T, parts ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{"..", "..", "examples"}, parts...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestExamples runs a Go parameter server under Python trainers, Python actors under a Go driver, and a network of two halves.
func TestExamples(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		t.Run("paramserver", func(t *testing.T) {
			url := "tcp://127.0.0.1:" + strconv.Itoa(testkit.FreePort(t))
			ps := startExample(t, "paramserver", url+"?rank=0&world_size=3")
			var trainers []*torchtest.Proc
			for _, rank := range []string{"1", "2"} {
				trainers = append(trainers, tr.Start(t, torchtest.Script{
					Source: source(t, "paramserver", "trainer.py"), Args: []string{url, rank, "3"},
					Modules: map[string]string{"paramserver": source(t, "paramserver", "paramserver.py")},
				}))
			}
			for _, p := range trainers {
				p.MustExit(t, time.Minute)
			}
			if err := ps.cmd.Wait(); err != nil {
				t.Fatalf("%v\n%s", err, &ps.stderr)
			}
			if !strings.Contains(ps.stdout.String(), "400 pushes, slope") {
				t.Errorf("the server says %q", &ps.stdout)
			}
		})
		t.Run("actors", func(t *testing.T) {
			url := "tcp://127.0.0.1:" + strconv.Itoa(testkit.FreePort(t))
			var workers []*torchtest.Proc
			for _, rank := range []string{"1", "2"} {
				workers = append(workers, tr.Start(t, torchtest.Script{
					Source: source(t, "actors", "worker.py"), Args: []string{url, rank, "3"},
					Modules: map[string]string{"env": source(t, "actors", "env.py")},
				}))
			}
			driver := startExample(t, "actors", url+"?rank=0&world_size=3")
			if err := driver.cmd.Wait(); err != nil {
				t.Fatalf("%v\n%s", err, &driver.stderr)
			}
			for _, p := range workers {
				p.MustExit(t, time.Minute)
			}
			if got, want := driver.stdout.String(), "2 environments, total reward 45.0\n"; got != want {
				t.Errorf("the driver says %q, want %q", got, want)
			}
		})
		t.Run("mixed", func(t *testing.T) {
			url := "tcp://127.0.0.1:" + strconv.Itoa(testkit.FreePort(t))
			worker := tr.Start(t, torchtest.Script{
				Source: source(t, "mixed", "worker.py"), Args: []string{url, "0", "2"},
				Modules: map[string]string{"features": source(t, "mixed", "features.py")},
			})
			driver := startExample(t, "mixed", url+"?rank=1&world_size=2")
			if err := driver.cmd.Wait(); err != nil {
				t.Fatalf("%v\n%s", err, &driver.stderr)
			}
			worker.MustExit(t, time.Minute)
			report := driver.stdout.String()
			var first, last float64
			if at := strings.Index(report, "loss from "); at < 0 || !strings.Contains(report, "▁") {
				t.Fatalf("the report has no curve or no losses:\n%s", report)
			} else if _, err := fmt.Sscanf(report[at:], "loss from %f to %f", &first, &last); err != nil {
				t.Fatal(err)
			}
			if last > first/4 { // neither half could do that alone: the head is linear, and the features are not the curve
				t.Errorf("the loss falls from %v to %v only", first, last)
			}
		})
	})
}
