// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpccmd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// rpcDescribe is what Go workers answer with []rpc.FunctionInfo.
const rpcDescribe = "cohort.rpc.describe"

func (a *app) rpcStubsCommand() *cobra.Command {
	var flags rpcFlags
	var out string
	var force bool
	cmd := &cobra.Command{
		Use:   "stubs WORKER",
		Short: "Write Python stub modules for the handlers of a Go worker",
		Long: strings.TrimSpace(`
Write the Python modules that callers of a Go worker import: one file for each module,
with the names, parameters, type hints and docstrings of its functions and classes. The
bodies are never run; PyTorch sends the name, and the Go worker runs its handler.

Parameters are named arg0, arg1 and so on unless the handler was registered with
rpc.Params. rpc.Doc adds a docstring.`),
		Example: strings.Trim(`
  cohort rpc stubs ps --addr node0:29500 --out stubs
  PYTHONPATH=stubs python3 trainer.py`, "\n"),
		Args: command.Exactly("WORKER"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return flags.WithStore(cmd.Context(), a.App, func(ctx context.Context, s *tcpstore.Client) error {
				functions, err := flags.describe(ctx, s, args[0])
				if err != nil {
					return err
				}
				files, err := stubFiles(args[0], functions)
				if err != nil {
					return err
				}
				return a.writeStubs(out, files, force)
			})
		},
	}
	flags.Bind(a.App, cmd)
	cmd.Flags().StringVar(&out, "out", ".", "the folder to write to")
	cmd.Flags().BoolVar(&force, "force", false, "overwrite existing files")
	return cmd
}

func (f *rpcFlags) describe(ctx context.Context, s *tcpstore.Client, worker string) ([]rpc.FunctionInfo, error) {
	world, err := readRPCWorld(ctx, s, f.round)
	if err != nil {
		return nil, err
	}
	m, err := world.worker("rpc: stubs", worker)
	if err != nil {
		return nil, err
	}
	if !m.Go {
		return nil, cohort.Newf("rpc: stubs", cohort.NotSupported, "worker %q is PyTorch's: import the modules that it runs", worker)
	}
	agent, err := f.guest(ctx, s, world)
	if err != nil {
		return nil, err
	}
	defer func() { _ = agent.Close() }()
	return rpc.Call[[]rpc.FunctionInfo](ctx, agent, worker, rpcDescribe)
}

func (a *app) writeStubs(folder string, files map[string]string, force bool) error {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		file := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // source code, for everybody
			return err
		}
		mode := os.O_WRONLY | os.O_CREATE | os.O_EXCL
		if force {
			mode = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
		}
		f, err := os.OpenFile(file, mode, 0o644) //nolint:gosec // the same
		if os.IsExist(err) {
			return cohort.Newf("rpc: stubs", cohort.AlreadyExists, "%s exists; --force overwrites it", file)
		}
		if err != nil {
			return err
		}
		_, err = f.WriteString(files[name])
		if failed := f.Close(); err != nil || failed != nil {
			return fmt.Errorf("%s: %w", file, errors.Join(err, failed))
		}
		names = append(names, file)
	}
	return a.Print("rpc.stubs", map[string]any{"files": names}, strings.Join(names, "\n"))
}

// identifier is what Python allows as a name, but for its keywords.
var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

var keywords = strings.Fields(
	"False None True and as assert async await break class continue def del elif else except finally for from global if import in " +
		"is lambda nonlocal not or pass raise return try while with yield")

func isPythonName(name string) bool {
	return identifier.MatchString(name) && !slices.Contains(keywords, name)
}

// stubModule is one module: functions, and methods by class.
type stubModule struct {
	functions []rpc.FunctionInfo
	classes   map[string][]rpc.FunctionInfo
}

// stubFiles returns the text of every module by its path.
func stubFiles(worker string, all []rpc.FunctionInfo) (map[string]string, error) {
	modules := map[string]*stubModule{}
	for _, f := range all {
		parts := strings.Split(f.Name, ".")
		for _, part := range parts {
			if !isPythonName(part) {
				return nil, cohort.Newf("rpc: stubs", cohort.NotSupported, "%q has no Python name: %q", f.Name, part)
			}
		}
		last := len(parts) - 1
		if f.Method {
			last--
		}
		if last < 1 {
			return nil, cohort.Newf("rpc: stubs", cohort.NotSupported, "%q has no module", f.Name)
		}
		module := strings.Join(parts[:last], "/")
		m := modules[module]
		if m == nil {
			m = &stubModule{classes: map[string][]rpc.FunctionInfo{}}
			modules[module] = m
		}
		if f.Method {
			m.classes[parts[last]] = append(m.classes[parts[last]], f)
		} else {
			m.functions = append(m.functions, f)
		}
	}
	files := map[string]string{}
	for path, m := range modules {
		name := path + ".py"
		for other := range modules {
			if strings.HasPrefix(other, path+"/") {
				name = path + "/__init__.py" // a module that has others inside is a package
			}
		}
		files[name] = m.text(worker, strings.ReplaceAll(path, "/", "."))
	}
	return files, nil
}

func (m *stubModule) text(worker, module string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\"\"\"What the Go worker %s serves. Written by `cohort rpc stubs`; the bodies are never run.\"\"\"\n", worker)
	b.WriteString("from __future__ import annotations\n\nimport typing\n\nimport torch\nimport torch.distributed.rpc\n")
	for _, class := range slices.Sorted(maps.Keys(m.classes)) {
		fmt.Fprintf(&b, "\n\nclass %s:\n", class)
		for i, f := range m.classes[class] {
			if i > 0 {
				b.WriteString("\n")
			}
			writeStub(&b, "    ", module, f)
		}
	}
	for _, f := range m.functions {
		b.WriteString("\n\n")
		writeStub(&b, "", module, f)
	}
	return b.String()
}

// writeStub writes one function. Types of its own module lose the module's name.
func writeStub(b *strings.Builder, indent, module string, f rpc.FunctionInfo) {
	var params []string
	if f.Method {
		params = append(params, "self")
	}
	local := func(t string) string { return strings.ReplaceAll(t, module+".", "") }
	optional := false
	for _, p := range f.Params {
		if !isPythonName(p.Name) {
			p.Name += "_" // it can only be given by position
		}
		text := p.Rest + p.Name + ": " + local(p.Type)
		if optional = optional || p.Optional; optional && p.Rest == "" { // Python wants the optional ones last
			text += " = ..."
		}
		params = append(params, text)
	}
	name := f.Name[strings.LastIndexByte(f.Name, '.')+1:]
	fmt.Fprintf(b, "%sdef %s(%s) -> %s:\n", indent, name, strings.Join(params, ", "), local(f.Result))
	if f.Doc != "" {
		fmt.Fprintf(b, "%s    %s\n", indent, docstring(f.Doc))
	}
	fmt.Fprintf(b, "%s    raise NotImplementedError\n", indent)
}

// docstring quotes a text as Python does.
func docstring(text string) string {
	return `"""` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"""`
}
