// A Prometheus for tests: the scraper, the OTLP receiver, the store and the query engine are Prometheus's own packages.
// The program leaves out the rest: web pages, rules, alerts and service discovery, whose build would take nearly as
// long again.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/storage/remote"
	"github.com/prometheus/prometheus/tsdb"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "prometheus:", err)
		os.Exit(1)
	}
}

func run() error {
	file := flag.String("config.file", "prometheus.yml", "Scrape configurations with static targets, and options of OTLP.")
	data := flag.String("storage.tsdb.path", "data", "The folder of the store.")
	address := flag.String("web.listen-address", "127.0.0.1:9090", "Serves /-/ready, /api/v1/query and /api/v1/otlp.")
	flag.Parse()
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))

	loaded, err := config.LoadFile(*file, false, logger)
	if err != nil {
		return err
	}
	store, err := tsdb.Open(*data, logger, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		return err
	}
	scraper, err := scrape.NewManager(&scrape.Options{}, logger, nil, nil, store, prometheus.NewRegistry())
	if err != nil {
		return err
	}
	if err := scraper.ApplyConfig(loaded); err != nil {
		return err
	}
	targets, err := staticTargets(loaded)
	if err != nil {
		return err
	}
	updates := make(chan map[string][]*targetgroup.Group, 1)
	updates <- targets

	ended := make(chan error, 2)
	go func() { ended <- scraper.Run(updates) }()
	go func() { ended <- http.ListenAndServe(*address, serve(logger, loaded, store)) }()
	return <-ended
}

// staticTargets returns the targets of each job. Service discovery is not built in.
func staticTargets(loaded *config.Config) (map[string][]*targetgroup.Group, error) {
	jobs, err := loaded.GetScrapeConfigs()
	if err != nil {
		return nil, err
	}
	targets := make(map[string][]*targetgroup.Group)
	for _, job := range jobs {
		for _, found := range job.ServiceDiscoveryConfigs {
			groups, isStatic := found.(discovery.StaticConfig)
			if !isStatic {
				return nil, fmt.Errorf("job %s has targets that are not static", job.JobName)
			}
			targets[job.JobName] = append(targets[job.JobName], groups...)
		}
	}
	return targets, nil
}

func serve(logger *slog.Logger, loaded *config.Config, store *tsdb.DB) http.Handler {
	engine := promql.NewEngine(promql.EngineOpts{
		Logger:               logger,
		MaxSamples:           1_000_000,
		Timeout:              time.Minute,
		LookbackDelta:        5 * time.Minute,
		EnableAtModifier:     true,
		EnableNegativeOffset: true,
		Parser:               parser.NewParser(parser.Options{}),
	})
	settings := func() config.Config { return *loaded }
	routes := http.NewServeMux()
	routes.Handle("POST /api/v1/otlp/v1/metrics", remote.NewOTLPWriteHandler(
		logger, prometheus.NewRegistry(), store, settings, remote.OTLPOptions{LookbackDelta: 5 * time.Minute}))
	routes.HandleFunc("GET /-/ready", func(http.ResponseWriter, *http.Request) {})
	routes.HandleFunc("GET /api/v1/query", func(answer http.ResponseWriter, request *http.Request) {
		series, err := query(request, engine, store)
		if err != nil {
			http.Error(answer, err.Error(), http.StatusUnprocessableEntity)
			return
		}
		json.NewEncoder(answer).Encode(map[string]any{
			"status": "success", "data": map[string]any{"resultType": "vector", "result": series},
		})
	})
	return routes
}

// One series of an answer, in the form of Prometheus's HTTP API.
type series struct {
	Metric labels.Labels `json:"metric"`
	Value  [2]any        `json:"value"`
}

// query evaluates an expression whose value is a vector, now.
func query(request *http.Request, engine *promql.Engine, store *tsdb.DB) ([]series, error) {
	expression := request.URL.Query().Get("query")
	asked, err := engine.NewInstantQuery(request.Context(), store, nil, expression, time.Now())
	if err != nil {
		return nil, err
	}
	defer asked.Close()
	result := asked.Exec(request.Context())
	if result.Err != nil {
		return nil, result.Err
	}
	vector, err := result.Vector()
	if err != nil {
		return nil, err
	}
	found := make([]series, 0, len(vector))
	for _, sample := range vector {
		if sample.H != nil {
			return nil, errors.New("the series is a native histogram")
		}
		value := strconv.FormatFloat(sample.F, 'f', -1, 64)
		found = append(found, series{Metric: sample.Metric, Value: [2]any{float64(sample.T) / 1000, value}})
	}
	return found, nil
}
