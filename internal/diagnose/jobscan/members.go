// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/cohort-dist/cohort/store/tcpstore"
)

// maxMembers bounds the ranks that are named.
const maxMembers = 8

// Members asks a store which Go ranks use it and returns a few of them in words. There are none of a store of PyTorch, or where
// no rank has said who it is.
func Members(ctx context.Context, client *tcpstore.Client) []string {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	stats, err := client.Stats(ctx)
	if err != nil {
		return nil // a store of PyTorch: it can be reached, which is all it tells
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(stats.Claims)) {
		if claim := stats.Claims[name]; claim.Held && len(all) < maxMembers {
			who, _, _ := strings.Cut(claim.Text, " #")
			all = append(all, strings.Replace(name, "/", " ", 1)+" is "+who)
		}
	}
	return all
}
