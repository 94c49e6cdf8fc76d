// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package runflags

import (
	"context"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/jobfile"
	"github.com/cohort-dist/cohort/internal/launch/program"
	"github.com/cohort-dist/cohort/internal/sys/numabind"
)

// Here is the system that this process runs on.
func Here() System {
	return System{Lookup: os.LookupEnv, GPUs: countGPUs, Devices: devices, ReadFile: readJobFile, ReadSecret: ReadSecret}
}

// devices asks Python, which may load PyTorch for minutes: a signal that would end a job ends the question.
func devices(ctx context.Context, python, kind string) (int, error) {
	ending := []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		ending = append(ending, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(ctx, ending...)
	defer stop()
	return program.Devices(ctx, python, kind)
}

// readJobFile reads a file up to the size that makes sense, and what a pipe or a device yields.
func readJobFile(name string) ([]byte, error) {
	f, err := os.Open(name) //nolint:gosec // the user names it
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, jobfile.MaxSize+1))
}

// countGPUs counts devices of NVIDIA, or of AMD, without their libraries.
func countGPUs() int {
	if list, set := os.LookupEnv("CUDA_VISIBLE_DEVICES"); set {
		if strings.TrimSpace(list) == "" || list == "-1" {
			return 0
		}
		return strings.Count(list, ",") + 1
	}
	for _, pattern := range []string{"/proc/driver/nvidia/gpus/*", "/dev/nvidia[0-9]*"} {
		if found, err := filepath.Glob(pattern); err == nil && len(found) > 0 {
			return len(found)
		}
	}
	all, err := numabind.Machine{Root: "/", Lookup: os.LookupEnv}.Devices()
	if err != nil {
		return 0
	}
	return len(all)
}
