// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// TestEarlySignal: a signal ends a job at whatever moment of its start it comes.
func TestEarlySignal(t *testing.T) {
	path, err := exec.LookPath("cohort")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		cmd := exec.Command(path, "run", "--evidence", "-", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint",
			"127.0.0.1:1", "--rdzv-conf", "is_host=0", "true")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * time.Millisecond) // the moment is what is tried out
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("after %d ms: it succeeded", i)
			}
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
			<-ended
			t.Fatalf("a signal after %d ms was lost", i)
		}
	}
}
