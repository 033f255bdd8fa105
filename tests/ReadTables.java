import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;

/**
 * The rows of a table as JSON, a line each, as Spark's own reader finds them, and how many a filter finds.
 *
 * Arguments: delta and the folder of the table, or iceberg and its metadata file; the filter.
 */
public class ReadTables {
    public static void main(String[] told) {
        SparkSession.Builder builder = SparkSession.builder().master("local[1]")
            .config("spark.ui.enabled", false)
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", 1)
            .config("spark.databricks.delta.snapshotPartitions", 1);
        // A table of a path is looked for here, and found by its path.
        builder.config("spark.sql.catalog.default_iceberg", "org.apache.iceberg.spark.SparkCatalog")
            .config("spark.sql.catalog.default_iceberg.type", "hadoop")
            .config("spark.sql.catalog.default_iceberg.warehouse", "warehouse");
        if (told[0].equals("delta")) {
            builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
                .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog");
        }
        SparkSession spark = builder.getOrCreate();
        Dataset<Row> table = spark.read().format(told[0]).load(told[1]);
        table.toJSON().collectAsList().forEach(System.out::println);
        System.out.println(table.where(told[2]).count());
        spark.stop();
    }
}
