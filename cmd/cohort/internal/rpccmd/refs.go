// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpccmd

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/tui"
	"github.com/cohort-dist/cohort/internal/util/printable"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// rpcReferences is what Go workers answer with rpc.ReferenceInfo.
const rpcReferences = "cohort.rpc.references"

// refsReport is what "cohort rpc refs" finds.
type refsReport struct {
	Workers []rpc.ReferenceInfo
	Cycles  [][]string
	Skipped []string          // PyTorch workers, which do not tell
	Failed  map[string]string // workers that did not answer
}

func (a *app) rpcRefsCommand() *cobra.Command {
	var flags rpcFlags
	cmd := &cobra.Command{
		Use:   "refs [WORKER...]",
		Short: "Show the remote references of Go workers",
		Long: strings.TrimSpace(`
Show the objects that Go workers own on behalf of others, and who holds references to
them: the owner, the object with its type, size and age, what created it, and for each
holder how long it has held it. Without WORKER all Go workers are asked; PyTorch
workers cannot be asked.

Objects that refer to each other in a cycle are never freed. If all workers are asked,
such cycles are shown too.`),
		Example: strings.Trim(`
  cohort rpc refs
  cohort rpc refs ps --json`, "\n"),
		Args: command.Between(0, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return flags.WithStore(cmd.Context(), a.App, func(ctx context.Context, s *tcpstore.Client) error {
				report, err := flags.readRefs(ctx, s, args)
				if err != nil {
					return err
				}
				if err := a.Print("rpc.refs", report.document(), report.text()); err != nil {
					return err
				}
				for _, name := range report.failedNames() {
					return cohort.Newf("rpc: refs", cohort.Unavailable, "worker %q did not answer: %s", name, report.Failed[name])
				}
				return nil
			})
		},
	}
	flags.Bind(a.App, cmd)
	return cmd
}

// readRefs asks the named workers, or all.
func (f *rpcFlags) readRefs(ctx context.Context, s *tcpstore.Client, names []string) (*refsReport, error) {
	world, err := readRPCWorld(ctx, s, f.round)
	if err != nil {
		return nil, err
	}
	report := &refsReport{Workers: []rpc.ReferenceInfo{}, Failed: map[string]string{}}
	var asked []string
	for _, m := range world.Workers {
		switch {
		case len(names) > 0 && !slices.Contains(names, m.Name):
		case m.Go:
			asked = append(asked, m.Name)
		case len(names) > 0:
			return nil, cohort.Newf("rpc: refs", cohort.NotSupported,
				"%q is a PyTorch worker, which does not report its references", m.Name)
		default:
			report.Skipped = append(report.Skipped, m.Name)
		}
	}
	for _, name := range names {
		if _, err = world.worker("rpc: refs", name); err != nil {
			return nil, err
		}
	}
	agent, err := f.guest(ctx, s, world)
	if err != nil {
		return nil, err
	}
	defer func() { _ = agent.Close() }()
	for _, name := range asked {
		info, err := rpc.Call[rpc.ReferenceInfo](ctx, agent, name, rpcReferences)
		if err != nil {
			report.Failed[name] = err.Error()
			continue
		}
		report.Workers = append(report.Workers, info)
	}
	report.Cycles = [][]string{}
	if len(names) == 0 {
		report.Cycles = append(report.Cycles, rpc.Cycles(report.Workers...)...)
	}
	return report, nil
}

func (r *refsReport) failedNames() []string {
	names := make([]string, 0, len(r.Failed))
	for name := range r.Failed {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// text is the report for people.
func (r *refsReport) text() string {
	var b strings.Builder
	objects := 0
	for _, w := range r.Workers {
		for _, o := range w.Objects {
			objects++
			fmt.Fprintf(&b, "%s  %s  %s, created by %s %s ago", w.Worker, o.ID, what(o), printable.Line(o.Created), age(o.Age))
			if o.Local > 0 {
				b.WriteString(", used by its owner")
			}
			b.WriteByte('\n')
			for _, f := range o.Forks {
				fmt.Fprintf(&b, "    held by %s for %s, heard %s ago  %s\n", f.Holder, age(f.Age), age(f.Silent), f.ID)
			}
		}
	}
	held := 0
	for _, w := range r.Workers {
		held += len(w.Handles)
	}
	fmt.Fprintf(&b, "%s and %s at %s", tui.Plural(objects, "object"), tui.Plural(held, "reference"),
		tui.Plural(len(r.Workers), "Go worker"))
	if len(r.Skipped) > 0 {
		fmt.Fprintf(&b, "; PyTorch workers do not report theirs: %s", strings.Join(r.Skipped, ", "))
	}
	for _, cycle := range r.Cycles {
		fmt.Fprintf(&b, "\na circle that is never freed: %s", strings.Join(cycle, " "))
	}
	return b.String()
}

// what describes an object: its type and size, or why there is none.
func what(o rpc.ObjectInfo) string {
	switch {
	case o.Error != "":
		return "failed (" + printable.Line(o.Error) + ")"
	case !o.Ready:
		return "not ready"
	case o.Size == 0:
		return cmp.Or(printable.Line(o.Type), "no type") + ", size unknown"
	}
	return printable.Line(o.Type) + ", " + tui.Bytes(int64(o.Size))
}

func age(seconds float64) string { return tui.Age(time.Duration(seconds * float64(time.Second))) }
