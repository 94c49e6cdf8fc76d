// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestWhyJobWithSlash: the id of a job may look like a path. It is called a missing file only where no such job runs.
func TestWhyJobWithSlash(t *testing.T) {
	id := fmt.Sprintf("team/run%d", os.Getpid())
	rank := exec.CommandContext(t.Context(), "sleep", "600")
	rank.Env = []string{"RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1", "TORCHELASTIC_RUN_ID=" + id}
	if err := rank.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = rank.Process.Kill()
		_ = rank.Wait()
	}()
	for _, c := range []struct {
		id, want string
		code     int
	}{{id, "job " + id, 0}, {id + "0", "no file or folder " + id + "0", 4}} {
		var out bytes.Buffer
		code := Main([]string{"why", "--apart", "1ms", c.id},
			IO{In: strings.NewReader(""), Out: &out, Err: &out, Getenv: func(string) string { return "" }})
		if code != c.code || !strings.Contains(out.String(), c.want) {
			t.Errorf("%s: exit code %d\n%s", c.id, code, out.String())
		}
	}
}
