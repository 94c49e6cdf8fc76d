// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/runflags"
	"github.com/cohort-dist/cohort/internal/security/jobtoken"
)

func (a *app) tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make and inspect the token that the nodes of a job share",
		Long: strings.TrimSpace(`
Make and inspect the token that the nodes of a job share. Launchers on several nodes
recognise each other by it. Who has it can join the job: keep it in a file that only you
can read, and give the file, not its content, to "cohort run --token-file".`),
		Args: command.NoSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.newTokenCommand(), a.showTokenCommand())
	return cmd
}

type newToken struct {
	Token   string     `json:"token,omitempty"`
	File    string     `json:"file,omitempty"`
	ID      string     `json:"id"`
	Expires *time.Time `json:"expires,omitempty"`
}

func (a *app) newTokenCommand() *cobra.Command {
	var expires, file string
	cmd := &cobra.Command{
		Use:   "new [-o FILE]",
		Short: "Make a token",
		Long: strings.TrimSpace(`
Make a token, before the job, and print it or write it into a new file that only you can
read. With --expires nothing that it protects is accepted after that time: no node can join,
and a launcher that hosts the rendezvous cannot be replaced. It should be longer than the job.`),
		Example: strings.Trim(`
  cohort token new -o job.token                    then: cohort run --token-file job.token ...
  cohort token new --expires 48h -o short.token
  cohort token new | ssh node1 'umask 077; cat >job.token'`, "\n"),
		Args: command.Exactly(),
		RunE: func(*cobra.Command, []string) error {
			until, err := expiry(expires, time.Now())
			if err != nil {
				return command.Usage(err)
			}
			token, err := jobtoken.New(until)
			if err != nil {
				return command.Usage(err)
			}
			return a.giveToken(token, file)
		},
	}
	cmd.Flags().StringVar(&expires, "expires", "",
		"when it expires: a duration such as 48h, or a time such as 2027-01-31T12:00:00Z (default: never)")
	cmd.Flags().StringVarP(&file, "output", "o", "", "a file to make, which only this user can read")
	return cmd
}

// expiry reads a duration or a time; "" is never.
func expiry(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	until, err := time.Parse(time.RFC3339, text)
	if d, failed := time.ParseDuration(text); failed == nil {
		until, err = now.Add(d), nil
	}
	switch {
	case err != nil:
		return until, fmt.Errorf("--expires %s: it must be a duration such as 48h, or a time such as 2027-01-31T12:00:00Z", text)
	case !until.After(now):
		return until, fmt.Errorf("--expires %s: that time has passed", text)
	}
	return until, nil
}

// giveToken prints a token, or writes it into a file that does not exist yet: a name that another user has made would let that user read
// it.
func (a *app) giveToken(token jobtoken.Token, file string) error {
	made := newToken{ID: token.ID(), File: file}
	if at := token.Expires(); !at.IsZero() {
		made.Expires = &at
	}
	if file == "" {
		made.Token = token.Text()
		return a.Print("token.new", made, made.Token)
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) //nolint:gosec // the user names it
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s exists: remove it, or choose another name; a token is not written over another file", file)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(token.Text() + "\n")
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return a.Print("token.new", made, "token "+made.ID+" is in "+file)
}

type shownToken struct {
	ID      string     `json:"id"`
	Expires *time.Time `json:"expires,omitempty"`
	Expired bool       `json:"expired"`
}

func (a *app) showTokenCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "show [--token-file FILE]",
		Short: "Print what is not secret of a token: its id, and when it expires",
		Long: strings.TrimSpace(`
Print what is not secret of a token: its id, and when it expires. Nodes whose tokens have
the same id can meet. The token is that of --token-file, else of COHORT_TOKEN_FILE or
COHORT_TOKEN.`),
		Example: strings.Trim(`
  cohort token show --token-file job.token`, "\n"),
		Args: command.Exactly(),
		RunE: func(*cobra.Command, []string) error { return a.showToken(file) },
	}
	cmd.Flags().StringVar(&file, "token-file", "", "the file of the token")
	return cmd
}

func (a *app) showToken(file string) error {
	from := file
	text := a.Getenv(runflags.EnvToken)
	if from == "" {
		from = a.Getenv(runflags.EnvTokenFile)
	}
	if from != "" {
		read, others, err := runflags.ReadSecret(from)
		if err != nil {
			return err
		}
		if others {
			a.Note("cohort: other users of this host can read the token in " + from)
		}
		text = read
	}
	if strings.TrimSpace(text) == "" {
		return command.Usage(errors.New("the token is missing: --token-file FILE, COHORT_TOKEN_FILE or COHORT_TOKEN"))
	}
	token, err := jobtoken.Parse(text)
	if err != nil {
		return err
	}
	shown := shownToken{ID: token.ID(), Expired: token.Expired(time.Now())}
	line := "token " + shown.ID + ", does not expire"
	if at := token.Expires(); !at.IsZero() {
		shown.Expires = &at
		line = "token " + shown.ID + ", expires " + at.Format(time.RFC3339)
	}
	if shown.Expired {
		line = "token " + shown.ID + ", expired " + token.Expires().Format(time.RFC3339)
	}
	return a.Print("token.show", shown, line)
}
