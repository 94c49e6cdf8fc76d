// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package cli

import (
	"bytes"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/cli/command"
)

// signalling sends SIGTERM to this process with the first thing that is written.
type signalling struct {
	bytes.Buffer
	t      *testing.T
	caught chan os.Signal // here too
}

func (s *signalling) Write(b []byte) (int, error) {
	if s.Len() == 0 {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			s.t.Error(err)
		}
		<-s.caught // and by whoever catches it by now
	}
	return s.Buffer.Write(b)
}

// TestSignalBeforeTheJob: a signal that comes before the job has begun, while it is said how many workers there will be,
// ends it all the same.
func TestSignalBeforeTheJob(t *testing.T) {
	complaints := &signalling{t: t, caught: make(chan os.Signal, 1)}
	signal.Notify(complaints.caught, syscall.SIGTERM)
	defer signal.Stop(complaints.caught)
	from := time.Now()
	code := Main([]string{
		runName, "--nproc-per-node", "auto", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:1",
		"--rdzv-conf", "is_host=0,join_timeout=30", "--evidence", "-", "true",
	}, IO{In: strings.NewReader(""), Out: &bytes.Buffer{}, Err: complaints, Getenv: func(string) string { return "" }})
	if took := time.Since(from); code != command.ExitFailure || took > 25*time.Second || !strings.Contains(complaints.String(), "the job was ended by SIGTERM") {
		t.Errorf("exit code %d after %v\n%s", code, took, complaints.String())
	}
}
