// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/runflags"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// example is a line of a command's help text: what it shows, and the arguments of the cohort command in it.
type example struct {
	of   string // the command whose help has it
	line string
	args []string
}

// What a shell does with the words around the command, and the explanation after it.
var (
	pipeline = regexp.MustCompile(`\s(?:\|\||&&|\||>>|>|<)\s`)
	remark   = regexp.MustCompile(`\s{3,}.*$`)
	word     = regexp.MustCompile(`'[^']*'|"[^"]*"|\$\([^)]*\)|\S+`)
	variable = regexp.MustCompile(`^[A-Z_]+=`)
)

// helpExamples returns the examples of all commands.
func helpExamples(t *testing.T) (all []example) {
	t.Helper()
	for _, cmd := range visible(testApp(nil).root()) {
		for line := range strings.Lines(cmd.Example) {
			if line = strings.TrimRight(line, "\n"); strings.HasPrefix(line, "   ") {
				continue // the explanation of the line above
			}
			found := false
			for _, part := range pipeline.Split(remark.ReplaceAllString(strings.TrimPrefix(line, "  "), ""), -1) {
				words := word.FindAllString(part, -1)
				for len(words) > 0 && variable.MatchString(words[0]) {
					words = words[1:]
				}
				if len(words) == 0 || words[0] != "cohort" {
					continue
				}
				for i, w := range words {
					if first := w[0]; first == '\'' || first == '"' {
						words[i] = w[1 : len(w)-1]
					}
				}
				all, found = append(all, example{cmd.CommandPath(), strings.TrimSpace(line), words[1:]}), true
			}
			if !found && !strings.Contains(line, "python3 ") {
				t.Errorf("%s: no command in %q", cmd.CommandPath(), line)
			}
		}
	}
	return all
}

// exampleJob is the job.yaml of the examples.
const exampleJob = "roles: [{name: a, program: ./a}, {name: b, program: ./b}]\n"

func testApp(env map[string]string) *app {
	var out bytes.Buffer
	return &app{App: &command.App{IO: IO{
		In: strings.NewReader("value"), Out: &out, Err: &out,
		Getenv: func(name string) string { return env[name] },
	}}}
}

// TestExamplesParse: every example in a help text is of the command that shows it, or of one below it, and has options and arguments that
// the command takes.
func TestExamplesParse(t *testing.T) {
	t.Parallel()
	examples := helpExamples(t)
	shown := map[string]bool{}
	for _, e := range examples {
		root := testApp(nil).root()
		cmd, rest, err := root.Find(e.args)
		if err != nil {
			t.Errorf("%s: %q: %v", e.of, e.line, err)
			continue
		}
		shown[e.of] = shown[e.of] || strings.HasPrefix(cmd.CommandPath()+" ", e.of+" ")
		if cmd.DisableFlagParsing {
			_, err = runflags.Parse(t.Context(), rest, runflags.System{
				Lookup: func(string) (string, bool) { return "", false }, GPUs: func() int { return 1 },
				ReadFile: func(string) ([]byte, error) { return []byte(exampleJob), nil },
			})
		} else if err = cmd.ParseFlags(rest); err == nil {
			err = cmd.ValidateArgs(cmd.Flags().Args())
		}
		if err != nil {
			t.Errorf("%s: %q: %v", e.of, e.line, err)
		}
	}
	for _, cmd := range visible(testApp(nil).root()) {
		if cmd.Example != "" && !shown[cmd.CommandPath()] {
			t.Errorf("no example of %q shows it", cmd.CommandPath())
		}
	}
	for _, name := range []string{"run", "bench", "coordinate", "trace", "why", "store", "rpc"} {
		if !slices.ContainsFunc(examples, func(e example) bool { return e.of == "cohort "+name }) {
			t.Errorf("no example of cohort %s was found", name)
		}
	}
}

// exampleWorld is what the examples expect to be there: a store with keys, and two workers. It returns the store's address.
func exampleWorld(t *testing.T) string {
	t.Helper()
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	reg := rpc.NewRegistry().
		MustHandle("stats.mean", func(xs []float64) float64 { return float64(len(xs)) }).
		MustHandle("train.checkpoint", func(_ context.Context, r *rpc.Request) (any, error) { return r.Kwargs, nil })
	for _, name := range []string{"ps", "trainer1"} {
		st, err := tcpstore.Dial(t.Context(), server.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = st.Close() })
		agent, err := rpc.Join(t.Context(), st, name, rpc.WithAddr("127.0.0.1:0"), rpc.WithHandlers(reg))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = agent.Close() })
	}
	return server.Addr().String()
}

// leftOut are the examples that TestExamplesRun does not run, and why.
var leftOut = map[string]string{
	"store serve": "stays", "store gateway": "stays", "store top": "stays without --once", "coordinate": "stays",
	"bench": "measures; bench_coll.txtar and bench_rpc.txtar run it",
	"demo":  "demo.txtar runs it", "why": "inspects every job of this machine; why.txtar runs it",
	"store clear":  "would take the store from the other examples",
	"store backup": "needs a folder; data.txtar runs it", "store check": "as store backup", "store restore": "as store backup",
	"store member": "needs several members; cluster.txtar runs it",
	"trace --addr": "inspects the jobs of this machine", "man ~": "writes into the home folder; man.txtar runs it",
}

// TestExamplesRun runs the other examples, in a folder of their own and with a store of their own; "cohort run" as a rehearsal.
func TestExamplesRun(t *testing.T) {
	addr := exampleWorld(t)
	archive, err := txtar.ParseFile("../../testdata/trace.txtar")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	if err := os.Mkdir("dumps", 0o700); err != nil {
		t.Fatal(err)
	}
	for _, f := range archive.Files {
		if name, ok := strings.CutPrefix(f.Name, "late/"); ok {
			if err := errors.Join(os.WriteFile(name, f.Data, 0o600),
				os.WriteFile(filepath.Join("dumps", name), f.Data, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile("job.yaml", []byte(exampleJob), 0o600); err != nil {
		t.Fatal(err)
	}
	unused := maps.Clone(leftOut)
	for _, e := range helpExamples(t) {
		line := strings.Join(e.args, " ")
		if out := slices.IndexFunc(slices.Sorted(maps.Keys(leftOut)),
			func(p string) bool { return strings.HasPrefix(line, p) }); out >= 0 && !strings.Contains(line, "--once") {
			delete(unused, slices.Sorted(maps.Keys(leftOut))[out])
			continue
		}
		t.Run(line, func(t *testing.T) { runExample(t, addr, e) })
	}
	if len(unused) > 0 {
		t.Errorf("left out, but shown by no help text: %v", unused)
	}
}

func runExample(t *testing.T, addr string, e example) {
	t.Helper()
	st, err := tcpstore.Dial(t.Context(), addr)
	if err == nil {
		err = os.RemoveAll("stubs") // an example before this one has written them
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	for key, value := range map[string]string{"epoch": "3", "steps": "1", "blob": "b", "ready/0": "", "ready/1": "", "leader": "node3"} {
		if err := st.Set(t.Context(), key, []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
	args := slices.Clone(e.args)
	for i, a := range args {
		if strings.HasSuffix(a, ":29500") {
			args[i] = addr
		}
	}
	if args[0] == runName {
		args = slices.Insert(args, 1, "--dry-run")
	}
	host, port, _ := strings.Cut(addr, ":")
	env := map[string]string{"MASTER_ADDR": host, "MASTER_PORT": port}
	var out bytes.Buffer
	code := Main(args, IO{In: strings.NewReader("value"), Out: &out, Err: &out, Getenv: func(name string) string { return env[name] }})
	if code != command.ExitOK {
		t.Errorf("%s shows %q, which ends with %d:\n%s", e.of, e.line, code, out.String())
	}
}
