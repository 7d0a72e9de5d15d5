/* Collectives of Open MPI between processes: mpirun -n 2 PROGRAM SECONDS. Rank 0 prints a JSON object for each operation and size. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static float *values, *other;
static int rank, ranks;

static void all_reduce(int length) { MPI_Allreduce(MPI_IN_PLACE, values, length, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }

static void reduce_scatter(int length) {
    int counts[64];
    for (int i = 0; i < ranks; i++) counts[i] = length / ranks + (i < length % ranks);
    MPI_Reduce_scatter(values, other, counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void all_gather(int length) {
    int counts[64], places[64], place = 0;
    for (int i = 0; i < ranks; i++) {
        counts[i] = length / ranks + (i < length % ranks);
        places[i] = place;
        place += counts[i];
    }
    MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, values, counts, places, MPI_FLOAT, MPI_COMM_WORLD);
}

int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    double seconds = count > 1 ? atof(arguments[1]) : 1.0;
    const int lengths[] = {1, 16, 256, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20};
    const struct { const char *name; void (*call)(int); } operations[] = {
        {"all-reduce", all_reduce}, {"reduce-scatter", reduce_scatter}, {"all-gather", all_gather}};
    values = calloc(64 << 20, sizeof *values);
    other = calloc(64 << 20, sizeof *other);
    for (int l = 0; l < 8; l++) {
        for (int o = 0; o < 3; o++) {
            double warm = 1e9;
            for (int i = 0; i < 3; i++) {
                double begun = MPI_Wtime();
                operations[o].call(lengths[l]);
                double took = MPI_Wtime() - begun;
                if (took < warm) warm = took;
            }
            if (warm < 1e-7) warm = 1e-7;
            double repeats = seconds / warm;
            repeats = repeats < 5 ? 5 : repeats > 20000 ? 20000 : repeats;
            MPI_Bcast(&repeats, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
            if (rank == 0) printf("{\"operation\": \"%s\", \"bytes\": %ld, \"seconds\": [", operations[o].name, 4L * lengths[l]);
            for (int i = 0; i < (int)repeats; i++) {
                double begun = MPI_Wtime();
                operations[o].call(lengths[l]);
                double took = MPI_Wtime() - begun;
                if (rank == 0) printf("%s%.9f", i ? ", " : "", took);
            }
            if (rank == 0) printf("]}\n");
        }
    }
    MPI_Finalize();
    return 0;
}
