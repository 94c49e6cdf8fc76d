// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package signame

import (
	"slices"
	"strings"
	"syscall"
	"testing"
)

func TestParse(t *testing.T) {
	t.Parallel()
	got, err := Parse("SIGTERM, usr1,SIGXCPU,")
	if want := []syscall.Signal{syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGXCPU}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, name := range []string{"SIGKILL", "SIGSTOP", "SIGNOSUCH", "9"} {
		if _, err := Parse(name); err == nil || !strings.Contains(err.Error(), "cannot be handled") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
