// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package democmd

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/childproc"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
)

// message is one line from a worker to the demonstration.
type message struct {
	Rank  int    `json:"rank"`
	Act   int    `json:"act"`
	Ended bool   `json:"ended"`
	Text  string `json:"text,omitempty"`
	Error string `json:"error,omitempty"`
}

// NewWorker returns the command that "cohort demo" starts; people do not call it.
func NewWorker(shared *command.App) *cobra.Command {
	a := &app{shared}
	var rank int
	var scene, python, script string
	cmd := &cobra.Command{
		Use:    "demo-worker",
		Hidden: true,
		Args:   command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if scene != "" {
				return a.playScene(cmd.Context(), scene, python, script)
			}
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			childproc.CancelAtEOF(a.In, cancel)
			return playAll(ctx, rank, json.NewEncoder(a.Out))
		},
	}
	cmd.Flags().IntVar(&rank, "rank", 0, "the number of this worker")
	cmd.Flags().StringVar(&scene, "scene", "", "what to play under the launcher")
	cmd.Flags().StringVar(&python, "python", "", "the Python of the last rank")
	cmd.Flags().StringVar(&script, "script", "", "its script")
	return cmd
}

func playAll(ctx context.Context, rank int, out *json.Encoder) error {
	var s stage
	defer func() {
		if s.world != nil {
			_ = s.world.Close()
		}
	}()
	for i, act := range acts() {
		if err := out.Encode(message{Rank: rank, Act: i}); err != nil {
			return err
		}
		text, err := act.play(ctx, &s)
		report := message{Rank: rank, Act: i, Ended: true, Text: text}
		if err != nil {
			report.Error = err.Error()
		}
		if told := out.Encode(report); told != nil {
			return told
		}
		if err != nil {
			return command.Exit(command.ExitFailure)
		}
	}
	return s.world.Shutdown(ctx)
}
