// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/tui"
	"github.com/cohort-dist/cohort/internal/diagnose/jobscan"
	"github.com/cohort-dist/cohort/internal/observe/flightrec"
	"github.com/cohort-dist/cohort/internal/util/printable"
)

func (a *app) traceCommand() *cobra.Command {
	var perfetto, addr string
	var verbose bool
	cmd := &cobra.Command{
		Use:   "trace [--addr HOST:PORT | FILES...]",
		Short: "Say why a job hangs, from flight recorder dumps",
		Long: strings.TrimSpace(`
Read the flight recorder dumps of the ranks of a job and say in one sentence who is
late, missing or out of step. A table then shows, for each group, what each rank does.

A dump is what Group.Trace returns, what WithDump passes on when a group fails, and
what a process writes on a signal. Give one file per rank, all taken at about the same
time; a folder means all .json files in it, "-" means standard input.

--addr asks the Go ranks that use this store, so no files are needed. Run it on a host
of the job: ranks answer only their own user on their own host. It reaches the ranks
that "cohort run" started, on all nodes, and others on this host with COHORT_DUMP_DIR
set.

--perfetto writes all operations of all ranks as a trace for https://ui.perfetto.dev:
each rank is shown as a process and each group as a thread.`),
		Example: strings.Trim(`
  cohort trace dumps/
  cohort trace rank0.json rank1.json rank2.json
  cohort trace --addr 127.0.0.1:29500
  cohort trace --json dumps/ | jq -r .sentence
  cohort trace --perfetto job.trace.json dumps/`, "\n"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (addr == "") == (len(args) == 0) {
				return command.Usage(errors.New("give either FILES or --addr"))
			}
			dumps, err := a.readDumps(args)
			if addr != "" {
				dumps, err = a.askDumps(cmd.Context(), addr)
			}
			if err != nil {
				return err
			}
			if perfetto != "" {
				if err := writePerfetto(perfetto, dumps); err != nil {
					return err
				}
			}
			return a.printVerdict(flightrec.Analyze(dumps), verbose)
		},
	}
	cmd.Flags().StringVar(&addr, "addr", "", "the address of the job's store, HOST:PORT: ask its ranks")
	cmd.Flags().StringVar(&perfetto, "perfetto", "", "write a trace for Perfetto to this file")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "list all pending operations of each rank, not only the oldest")
	return cmd
}

// askDumps asks the Go ranks of a job that has ranks on this host for their dumps.
func (a *app) askDumps(ctx context.Context, addr string) ([]flightrec.Dump, error) {
	addr, err := command.StoreAddr(addr, a.Getenv)
	if err != nil {
		return nil, err
	}
	found, release, err := a.jobs(ctx, []string{addr})
	defer release()
	if err != nil {
		return nil, a.elsewhere(ctx, addr)
	}
	var dumps []flightrec.Dump
	for _, j := range found {
		dumps = append(dumps, jobscan.Recorded(ctx, j)...)
	}
	if len(dumps) == 0 {
		return nil, cohort.Newf("trace", cohort.NotFound,
			"no rank of the job at %s has answered: Go ranks do when \"cohort run\" has started them or COHORT_DUMP_DIR is set; "+
				"\"cohort why\" reads ranks of PyTorch", addr)
	}
	return dumps, nil
}

// elsewhere says why ranks of a job that has none on this host are not asked, and where to ask.
func (a *app) elsewhere(ctx context.Context, addr string) error {
	limited, cancel := context.WithTimeout(ctx, storePatience)
	defer cancel()
	client, err := a.DialStore(limited, addr)
	if err != nil {
		return fmt.Errorf("no rank on this host uses the store %s, and the store cannot be asked where they are: %w", addr,
			command.Explain(ctx, err))
	}
	defer func() { _ = client.Close() }()
	where := "on a host of the job"
	if who := jobscan.Members(ctx, client); len(who) > 0 {
		where = "there: " + strings.Join(who, "; ")
	}
	return cohort.Newf("trace", cohort.NotFound,
		"no rank on this host uses the store %s, and ranks give their recorders only to their own user on their own host; run this "+
			"command %s", addr, where)
}

// maxDumpFile is the largest dump that is read.
const maxDumpFile = 256 << 20

// readDumps reads the files, the folders' .json files, or standard input.
func (a *app) readDumps(args []string) ([]flightrec.Dump, error) {
	var files []string
	for _, name := range args {
		info, err := os.Stat(name)
		if name == "-" || err != nil || !info.IsDir() {
			files = append(files, name) // opening it explains what is wrong
			continue
		}
		inside, err := filepath.Glob(filepath.Join(globQuote(name), "*.json"))
		if err != nil {
			return nil, err
		}
		if len(inside) == 0 {
			return nil, cohort.Newf("trace", cohort.NotFound, "folder %s has no .json file", name)
		}
		files = append(files, inside...)
	}
	dumps := make([]flightrec.Dump, 0, len(files))
	for _, name := range files {
		data, err := a.readDump(name)
		if err != nil {
			return nil, err
		}
		d, err := flightrec.Parse(data)
		if err != nil {
			return nil, foreignDump(name, data, err)
		}
		dumps = append(dumps, d)
	}
	return dumps, nil
}

// globQuote makes a folder's name mean itself in a pattern.
func globQuote(name string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(name)
}

func (a *app) readDump(name string) ([]byte, error) {
	in := a.In
	if name != "-" {
		f, err := os.Open(name) //nolint:gosec // the user's file
		if err != nil {
			if errors.Is(err, os.ErrNotExist) {
				return nil, cohort.Newf("trace", cohort.NotFound, "no file %s", name)
			}
			return nil, err
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxDumpFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return data, nil
}

// foreignDump explains a file that is not a dump of ours.
func foreignDump(name string, data []byte, err error) error {
	var cause *cohort.Error
	if !errors.As(err, &cause) {
		return err
	}
	e := cohort.Newf("trace", cause.Code, "%s: %s", name, cause.Detail)
	switch {
	case len(data) == 0:
		e.Detail = name + " is empty"
	case data[0] == 0x80:
		e.Detail = name + " is a pickle, such as PyTorch's NCCL flight recorder writes: \"cohort why\" reads those"
	case cause.Code == cohort.Protocol && strings.Contains(string(data[:min(len(data), 4096)]), `"traceEvents"`):
		e.Detail = name + " is a trace for Perfetto already: open it at https://ui.perfetto.dev"
	}
	return e
}

func writePerfetto(name string, dumps []flightrec.Dump) error {
	trace, err := flightrec.Perfetto(dumps)
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(trace, '\n'), 0o644) //nolint:gosec // for everybody to open
}

func (a *app) printVerdict(v flightrec.Diagnosis, verbose bool) error {
	if a.JSON {
		return a.Print("trace", v, "")
	}
	style := tui.StyleFor(a.Out, a.Getenv)
	var b strings.Builder
	switch v.Finding {
	case flightrec.InStep:
		b.WriteString(style.Green(printable.Line(v.Sentence)))
	case flightrec.NoDump, flightrec.Behind, flightrec.Unfinished:
		b.WriteString(style.Yellow(printable.Line(v.Sentence)))
	default:
		b.WriteString(style.Red(printable.Line(v.Sentence)))
	}
	b.WriteByte('\n')
	for _, g := range v.Groups {
		b.WriteByte('\n')
		title := fmt.Sprintf("group %s, %d ranks", g.Group, g.Size)
		if g.Transport != "" {
			title += ", " + g.Transport
		}
		if g.Description != "" {
			title += ": " + g.Description
		}
		b.WriteString(printable.Line(title) + "\n")
		if len(v.Groups) > 1 {
			b.WriteString("  " + printable.Line(g.Sentence) + "\n")
		}
		b.WriteString(tui.Columns(g.Table(verbose)))
	}
	if len(v.Workers) > 0 {
		b.WriteString("\nRPC workers\n" + tui.Columns(flightrec.WorkerTable(v.Workers)))
	}
	for _, note := range v.Notes {
		b.WriteString("\nnote: " + printable.Line(note) + "\n")
	}
	_, err := io.WriteString(a.Out, b.String())
	return err
}
