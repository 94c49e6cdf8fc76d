// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package examples_test

import (
	"context"
	"go/parser"
	"go/token"
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

// fewer are arguments that make an example quick; its header is run as it stands but for them.
var fewer = map[string]string{"chars": " -steps 20"}

// TestHeaders runs the commands in the first comment of every example, each block as one shell script, as a reader would paste it.
// Only the port is another, and go run is replaced by the program that it would build.
func TestHeaders(t *testing.T) {
	mains, err := filepath.Glob(filepath.Join("..", "..", "examples", "*", "main.go"))
	if err != nil || len(mains) < 5 {
		t.Fatalf("%d examples were found: %v", len(mains), err)
	}
	for _, file := range mains {
		name := filepath.Base(filepath.Dir(file))
		blocks := commands(t, file)
		if len(blocks) == 0 {
			t.Errorf("examples/%s does not explain how to run it", name)
		}
		for _, block := range blocks {
			t.Run(name, func(t *testing.T) {
				if !strings.Contains(block, "python3 ") && !strings.Contains(block, ".py") {
					runBlock(t, name, block)
					return
				}
				if name != "reconfigure" {
					torchtest.V113.Need(t)
					runBlock(t, name, block, "python3 ", strings.Join(torchtest.V113.Command(), " ")+" ")
					return
				}
				torchtest.Newest.Need(t) // older ones cannot
				command := strings.Join(torchtest.Newest.Command(), " ") + " " + trainScript(t, torchtest.Newest)
				if strings.Contains(block, "cohort run") {
					runBlock(t, name, block, "cohort run", testkit.BuildProgram(t, "cmd/cohort")+" run",
						"examples/"+name+"/train.py", command)
					return
				}
				runBlock(t, name, block, "python3 examples/"+name+"/train.py", command)
			})
		}
	}
}

func runBlock(t *testing.T, name, block string, replace ...string) {
	t.Helper()
	out := paste(t, filepath.Join("..", ".."), block,
		append(replace, "go run ./examples/"+name, testkit.BuildProgram(t, "examples/"+name)+fewer[name])...)
	if out == "" {
		t.Error("it prints nothing")
	}
}

// paste runs commands as a reader who pastes them into a shell in a folder, with another port, and waits for all that they
// started. replace has pairs of what is written and what is run for it.
func paste(t *testing.T, folder, commands string, replace ...string) string {
	t.Helper()
	script := strings.NewReplacer(append(replace, "29500", strconv.Itoa(testkit.FreePort(t)))...).Replace(commands)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euc", script+"\nfor p in $(jobs -p); do wait $p; done")
	cmd.Dir, cmd.WaitDelay = folder, 5*time.Second
	cmd.Env = append(os.Environ(), "GLOO_SOCKET_IFNAME=lo", "TP_SOCKET_IFNAME=lo")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, script, out)
	}
	return string(out)
}

// commands returns the indented blocks of a program's first comment.
func commands(t *testing.T, file string) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.PackageClauseOnly|parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	inside := false
	for line := range strings.Lines(f.Doc.Text()) {
		text, indented := strings.CutPrefix(line, "\t")
		switch {
		case indented && inside:
			blocks[len(blocks)-1] += text
		case indented:
			blocks = append(blocks, text)
		}
		inside = indented
	}
	return blocks
}
