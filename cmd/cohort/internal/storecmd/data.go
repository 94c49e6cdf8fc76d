// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecmd

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/tui"
	"github.com/cohort-dist/cohort/internal/store/storecore"
	"github.com/cohort-dist/cohort/internal/store/storejournal"
	"github.com/cohort-dist/cohort/internal/store/storelog"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

func (a *app) backupCommand() *cobra.Command {
	var flags command.StoreFlags
	var dir string
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Write what a store holds into a file",
		Long: strings.TrimSpace(`
Write what a store holds at one moment into a file: keys, queues and claims. The store
is used meanwhile. It may be one without a folder, so this is also how a store in
memory is moved into a folder ("cohort store restore"). With --data-dir the folder of a
store that is not running is read instead.

PyTorch's own stores cannot be backed up.`),
		Example: strings.Trim(`
  cohort store backup --addr node0:29500 store.backup
  cohort store backup --data-dir /var/lib/cohort store.backup`, "\n"),
		Args: command.Exactly("FILE"),
	}
	flags.Bind(a.App, cmd)
	cmd.Flags().StringVar(&dir, "data-dir", "", "read this folder instead of asking a server")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if dir != "" {
			return a.backup(args[0], func(w io.Writer) (int64, error) {
				size, _, err := storejournal.BackUp(dir, w)
				return size, err
			})
		}
		return flags.WithStore(cmd.Context(), a.App, func(ctx context.Context, s *tcpstore.Client) error {
			return a.backup(args[0], func(w io.Writer) (int64, error) { return s.Backup(ctx, w) })
		})
	}
	return cmd
}

// backup writes a file beside and renames it, so that there is never a part of one.
func (a *app) backup(name string, write func(io.Writer) (int64, error)) error {
	made := name + ".part"
	f, err := os.OpenFile(made, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600) //nolint:gosec // the user names it
	if err != nil {
		return err
	}
	size, err := write(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(made, name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(made))
	}
	return a.Print("store.backup", map[string]any{"file": name, "size_bytes": size}, fmt.Sprintf("%s: %s", name, tui.Bytes(size)))
}

func (a *app) restoreCommand() *cobra.Command {
	var dir string
	var same bool
	cmd := &cobra.Command{
		Use:   "restore --data-dir DIR FILE",
		Short: "Make the folder of a store from a backup",
		Long: strings.TrimSpace(`
Make the folder of a store from a backup, for "cohort store serve --data-dir". The
folder must not exist yet, or be empty.

The store gets an identity of its own: Go clients of the store that was backed up get
an error that says that the store was replaced, because what was stored after the
backup is gone. With --same-identity they go on with what the backup holds.`),
		Example: strings.Trim(`
  cohort store restore --data-dir /var/lib/cohort store.backup
  cohort store restore --data-dir /var/lib/cohort --same-identity store.backup`, "\n"),
		Args: command.Exactly("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			if dir == "" {
				return command.Usage(errors.New("--data-dir is missing: name the folder to make"))
			}
			return a.restore(args[0], dir, same)
		},
	}
	cmd.Flags().StringVar(&dir, "data-dir", "", "the folder to make")
	cmd.Flags().BoolVar(&same, "same-identity", false, "clients of the store that was backed up go on with this one")
	return cmd
}

func (a *app) restore(name, dir string, same bool) error {
	f, err := os.Open(name) //nolint:gosec // the user names it
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	got, err := storejournal.Restore(dir, f, same)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	id := tcpstore.Identity(got.Identity).String()
	return a.Print("store.restore", map[string]any{"dir": dir, "keys": got.Keys, "identity": id, "same_identity": same},
		fmt.Sprintf("%s: %s, identity %s", dir, tui.Plural(got.Keys, "key"), id))
}

func (a *app) checkCommand() *cobra.Command {
	var dir, salvage string
	cmd := &cobra.Command{
		Use:   "check --data-dir DIR",
		Short: "Look for damage in the folder of a store, and save what is left of it",
		Long: strings.TrimSpace(`
Read the folder of a store that is not running, and say what it holds and what is
damaged. Nothing is changed. The exit status is 1 if something is damaged.

With --salvage a new folder is made of all that can be read up to the first damage. If
anything is left out, that store has an identity of its own: its clients learn that it
is not the one that they know.`),
		Example: strings.Trim(`
  cohort store check --data-dir /var/lib/cohort
  cohort store check --data-dir /var/lib/cohort --salvage /var/lib/cohort.saved`, "\n"),
		Args: command.Exactly(),
		RunE: func(*cobra.Command, []string) error {
			if dir == "" {
				return command.Usage(errors.New("--data-dir is missing: name the folder of a store"))
			}
			return a.check(dir, salvage)
		},
	}
	cmd.Flags().StringVar(&dir, "data-dir", "", "the folder")
	cmd.Flags().StringVar(&salvage, "salvage", "", "make this new folder of what can be read")
	return cmd
}

// checkDocument is what a check has found.
type checkDocument struct {
	Dir      string            `json:"dir"`
	Format   uint32            `json:"format"`
	Identity string            `json:"identity"`
	Records  int64             `json:"records"`
	Bytes    int64             `json:"size_bytes"`
	Segments int               `json:"segments"`
	Snapshot string            `json:"snapshot,omitempty"`
	Problems []checkProblem    `json:"problems"`
	Notes    []string          `json:"notes,omitempty"`
	Salvaged *salvagedDocument `json:"salvaged,omitempty"`
}

type checkProblem struct {
	File   string `json:"file"`
	Offset int64  `json:"offset"`
	Record uint64 `json:"record,omitempty"`
	Reason string `json:"reason"`
}

type salvagedDocument struct {
	Dir     string `json:"dir"`
	Last    uint64 `json:"last_record"`
	LeftOut int64  `json:"records_left_out"`
}

func (a *app) check(dir, salvage string) error {
	options := storejournal.Options(storecore.Identity{})
	report, err := storelog.Check(dir, options)
	if err != nil {
		return err
	}
	d := checkOf(report)
	if salvage != "" {
		s, err := storelog.Salvage(dir, salvage, options)
		if err != nil {
			return err
		}
		d.Salvaged = &salvagedDocument{salvage, uint64(s.Last), s.LeftOut}
	}
	if err := a.Print("store.check", d, d.text()); err != nil {
		return err
	}
	if len(d.Problems) > 0 {
		return fmt.Errorf("%s is damaged: restore a backup, or save what is left with --salvage", dir)
	}
	return nil
}

func checkOf(r storelog.Report) *checkDocument {
	d := &checkDocument{
		Dir: r.Dir, Format: r.Format, Identity: r.Identity, Records: r.Records, Bytes: r.Bytes, Segments: len(r.Segments),
		Problems: []checkProblem{}, Notes: r.Notes,
	}
	if id, err := hex.DecodeString(r.Identity); err == nil && len(id) == len(tcpstore.Identity{}) {
		d.Identity = tcpstore.Identity(id).String()
	}
	if r.Snapshot != nil {
		d.Snapshot = r.Snapshot.File
	}
	for _, p := range r.Problems {
		d.Problems = append(d.Problems, checkProblem{p.File, p.Offset, uint64(p.LSN), p.Reason})
	}
	return d
}

func (d *checkDocument) text() string {
	lines := []string{fmt.Sprintf("%s: format %d, %s in %s, %s", d.Dir, d.Format, tui.Plural(int(d.Records), "record"),
		tui.Plural(d.Segments, "segment"), tui.Bytes(d.Bytes))}
	if d.Snapshot != "" {
		lines = append(lines, "snapshot: "+d.Snapshot)
	}
	lines = append(lines, d.Notes...)
	for _, p := range d.Problems {
		lines = append(lines, fmt.Sprintf("damaged: %s at offset %d: %s", p.File, p.Offset, p.Reason))
	}
	if s := d.Salvaged; s != nil {
		lines = append(lines, fmt.Sprintf("saved into %s: up to record %d; %s left out", s.Dir, s.Last,
			tui.Plural(int(s.LeftOut), "record")))
	}
	if len(d.Problems) == 0 {
		lines = append(lines, "no damage")
	}
	return strings.Join(lines, "\n")
}
